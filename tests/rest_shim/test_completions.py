"""Chats and completions: prompts, sampling, images, events, errors and disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rest_shim.options import RestOptions
from rest_shim.prompts import Prompter
from tensorway import errors
from tests.rest_shim.conftest import Shim, Shims, start_shim
from tests.rest_shim.fake_generator import FakeGenerator

WORDS = ("<s>", "</s>", "<image>", "user", "assistant", "system", ":", "hello", "there", "what")
IDS = {word: index for index, word in enumerate(WORDS)}
TEMPLATE = """
{% for message in messages %}{{ message.role }} : {{ message.content }} {{ eos_token }}
{% endfor %}{% if messages[0].content == 'forbidden' %}{{ raise_exception('not that') }}{% endif %}
{% if add_generation_prompt %}assistant :{% endif %}"""
HELLO = [{"role": "user", "content": "hello there"}]
PROMPT = ["user", ":", "hello", "there", "</s>", "assistant", ":"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tokenizer of ten words and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@dataclass
class Chat:
    """A shim that serves the generator ``g``, and the official client of it."""

    shim: Shim
    client: openai.AsyncOpenAI


@pytest.fixture(scope="module")
async def one_chat(folder: Path) -> AsyncIterator[Chat]:
    """A shim that lasts as long as these tests."""
    rest = RestOptions(generator=(f"g={folder}",), image_encoder="e")
    async with start_shim(rest) as shim:
        url = f"{shim.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield Chat(shim, client)


@pytest.fixture
def chat(one_chat: Chat) -> Chat:
    """The same, with a generator that has forgotten everything."""
    vars(one_chat.shim.router.generator).update(vars(FakeGenerator()))
    return one_chat


async def test_chat_is_rendered_by_the_models_template(chat: Chat):
    """The prompt is the template's, and the answer is whole, with its cost."""
    shim, client = chat.shim, chat.client
    answer = await client.chat.completions.create(model="g", messages=HELLO, temperature=0)
    start = shim.router.generator.requests[0]
    assert list(start.prompt_token_ids) == [IDS[word] for word in PROMPT]
    assert start.return_text
    choice = answer.choices[0]
    assert choice.message.content == "".join(f"<{IDS[word]}>" for word in PROMPT)
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 7, 14)
    assert answer.model == "g"


async def test_chat_streams_events(chat: Chat):
    """Pieces come one by one, the role once, the cost last."""
    client = chat.client
    stream = await client.chat.completions.create(
        model="g", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert [delta.content for delta in deltas] == [f"<{IDS[word]}>" for word in PROMPT]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * 6
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * 6 + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 14
    assert len({chunk.id for chunk in chunks}) == 1


async def test_completions_of_text_and_of_ids(chat: Chat):
    """A text is tokenised, ids are used as given; both may be streamed."""
    shim, client = chat.shim, chat.client
    for prompt in ("hello there", [IDS["hello"], IDS["there"]]):
        answer = await client.completions.create(model="g", prompt=prompt)
        assert answer.choices[0].text == "<7><8>"
        stream = await client.completions.create(model="g", prompt=prompt, stream=True)
        assert [chunk.choices[0].text async for chunk in stream] == ["<7>", "<8>"]
    assert shim.router.generator.requests[0].sampling_params.max_tokens == 16


async def test_sampling_options_are_passed_on(chat: Chat):
    """What is given arrives, what is left out stays absent."""
    shim, client = chat.shim, chat.client
    await client.chat.completions.create(
        model="g",
        messages=HELLO,
        max_completion_tokens=5,
        seed=7,
        stop="x",
        top_p=0.5,
        extra_body={"top_k": 3, "ignore_eos": False},
    )
    params = shim.router.generator.requests[0].sampling_params
    assert (params.max_tokens, params.seed, list(params.stop)) == (5, 7, ["x"])
    assert (params.top_p, params.top_k) == (0.5, 3)
    assert not params.HasField("temperature")
    await client.chat.completions.create(model="g", messages=HELLO)
    params = shim.router.generator.requests[1].sampling_params
    assert params.max_tokens == 512 - len(PROMPT)


def with_image(text: str) -> list[dict[str, Any]]:
    """A question about an image."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


async def test_images_go_through_the_encoder(chat: Chat):
    """An image is one placeholder in the prompt, and its URL goes to the encoder."""
    shim, client = chat.shim, chat.client
    await client.chat.completions.create(model="g", messages=with_image(" what"))
    request = shim.router.generator.requests[0]
    assert (request.model, request.target_model) == ("e", "g")
    words = ["user", ":", "<image>", "what", "</s>", "assistant", ":"]
    assert list(request.prompt_token_ids) == [IDS[word] for word in words]
    assert [image.url for image in request.images] == ["data:image/png;base64,AAAA"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": with_image("a <image> of mine")}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "forbidden"}]}, "messages"),
        ({"messages": HELLO, "n": 2}, "n"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": 5}, "logprobs"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": HELLO, "logit_bias": {"7": -100}}, "logit_bias"),
        ({"messages": HELLO, "max_tokens": -1}, "max_tokens"),
        ({"messages": HELLO, "seed": 2**63}, "seed"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
    ],
)
async def test_bad_chats_are_named(chat: Chat, body: Any, param: str):
    """Status 400 with the field; nothing reaches the generator."""
    shim = chat.shim
    answer = await shim.http.post("/v1/chat/completions", json={"model": "g", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert shim.router.generator.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["hello", "there"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["hello", 7]}, "prompt"),
        ({"prompt": "hello", "echo": True}, "echo"),
        ({"prompt": "hello", "best_of": 3}, "best_of"),
        ({"prompt": "hello", "suffix": "."}, "suffix"),
        ({"prompt": "hello", "logprobs": True}, "logprobs"),
        ({"prompt": "hello", "max_tokens": "many"}, "max_tokens"),
    ],
)
async def test_bad_completions_are_named(chat: Chat, body: Any, param: str):
    """Status 400 with the field; nothing reaches the generator."""
    answer = await chat.shim.http.post("/v1/completions", json={"model": "g", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert chat.shim.router.generator.requests == []


async def test_what_asks_for_nothing_is_accepted(chat: Chat):
    """Clients that send the defaults of what is not offered are served."""
    common = {"n": 1, "logit_bias": {}, "user": "me"}
    defaults = {"tools": [], "response_format": {"type": "text"}, "logprobs": False}
    body = {"model": "g", "messages": HELLO, **common, **defaults, "top_logprobs": 0}
    answer = await chat.shim.http.post("/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["logprobs"] is None
    body = {"model": "g", "prompt": ["hello"], **common, "echo": False, "best_of": 1, "suffix": ""}
    answer = await chat.shim.http.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == "<7>"


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_chat(chat: Chat, stream: bool):
    """Each token has its own, and the likeliest ones in order, whole and as it comes."""
    answer = await chat.client.chat.completions.create(
        model="g", messages=HELLO, logprobs=True, top_logprobs=3, stream=stream
    )
    chunks = [chunk async for chunk in answer] if stream else [answer]
    content = [one for chunk in chunks for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in content] == PROMPT
    assert {one.logprob for one in content} == {-1}
    assert [(top.token, top.logprob) for top in content[2].top_logprobs] == [
        ("<s>", 0),
        ("hello", -1),
        ("</s>", -9999),
    ]
    assert bytes(content[2].bytes) == b"hello"
    assert chat.shim.router.generator.requests[0].sampling_params.logprobs == 3


async def test_only_those_of_the_answer(chat: Chat):
    """Without top_logprobs there are none of other tokens."""
    answer = await chat.client.chat.completions.create(model="g", messages=HELLO, logprobs=True)
    first, *_ = answer.choices[0].logprobs.content
    assert (first.token, first.top_logprobs) == ("user", [])
    params = chat.shim.router.generator.requests[0].sampling_params
    assert (params.HasField("logprobs"), params.logprobs) == (True, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_completion(chat: Chat, stream: bool):
    """Lists of tokens, and where they begin, which goes on over the pieces of a stream."""
    answer = await chat.client.completions.create(
        model="g", prompt="hello there", logprobs=1, stream=stream
    )
    chunks = [chunk async for chunk in answer] if stream else [answer]
    found = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for part in found for token in part.tokens] == ["hello", "there"]
    assert [offset for part in found for offset in part.text_offset] == [0, 5]
    assert [value for part in found for value in part.token_logprobs] == [-1, -1]
    tops = [top for part in found for top in part.top_logprobs]
    assert tops == [{"hello": -1, "<s>": 0}, {"there": -1, "<s>": 0}]


def test_pieces_of_tokens(tmp_path: Path):
    """Tokens are the bytes that they stand for: whole words, halves of characters, spaces."""
    byte_level = Tokenizer(models.BPE({"\u0120a": 0, "\u00c3": 1, "\u00a9": 2, "\u010a": 3}, []))
    byte_level.decoder = decoders.ByteLevel()
    byte_level.add_special_tokens(["<é>"])
    pieces = [b" a", b"\xc3", b"\xa9", b"\n", "<é>".encode(), b""]
    assert [prompter(tmp_path, byte_level).piece(token) for token in range(6)] == pieces
    fallback = Tokenizer(models.BPE({"\u2581a": 0, "<0xC3>": 1, "b": 2}, []))
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert [prompter(tmp_path, fallback).piece(t) for t in range(3)] == [b" a", b"\xc3", b"b"]


def prompter(folder: Path, tokenizer: Tokenizer) -> Prompter:
    """What the shim makes of a model's folder with this tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return Prompter(folder)


async def test_unknown_generator_is_not_found(chat: Chat):
    """A model without a tokenizer here is 404, with the known ones."""
    client = chat.client
    with pytest.raises(openai.NotFoundError, match="'g'"):
        await client.chat.completions.create(model="other", messages=HELLO)


async def test_error_before_the_first_token_is_a_status(chat: Chat):
    """A refused generation is no stream, also when a stream was asked for."""
    shim, client = chat.shim, chat.client
    shim.router.generator.error = errors.ResourceExhausted("busy")
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="g", messages=HELLO, stream=stream)


async def test_generators_refusal_names_the_callers_field(chat: Chat):
    """The field is told as the caller wrote it, not as the generator knows it."""
    field = "sampling_params.temperature"
    chat.shim.router.generator.error = errors.InvalidArgument(f"{field}: bad", field=field)
    with pytest.raises(openai.BadRequestError, match="- temperature: bad") as raised:
        await chat.client.chat.completions.create(model="g", messages=HELLO)
    assert raised.value.param == "temperature"


async def test_error_on_the_way_is_the_last_event(chat: Chat):
    """A generation that breaks says so, and never looks finished."""
    shim, client = chat.shim, chat.client
    generator = shim.router.generator
    generator.error, generator.error_after = errors.Unavailable("lost"), 2
    stream = await client.chat.completions.create(model="g", messages=HELLO, stream=True)
    got = [(await anext(stream)).choices[0] for _ in range(2)]
    with pytest.raises(openai.APIError, match="lost"):
        await anext(stream)
    assert all(choice.finish_reason is None for choice in got)
    body = {"model": "g", "messages": HELLO, "stream": True}
    text = (await shim.http.post("/v1/chat/completions", json=body)).text
    assert "[DONE]" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_cancels_the_generation(chat: Chat, stream: bool):
    """When the client leaves, so does the work."""
    shim = chat.shim
    shim.router.generator.endless = True
    body = {"model": "g", "messages": HELLO, "stream": stream}
    asked = asyncio.create_task(shim.http.post("/v1/chat/completions", json=body))
    while not shim.router.generator.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.wait_for(shim.router.generator.ended.wait(), 2)


async def test_images_need_an_encoder(shims: Shims, folder: Path):
    """Without --image-encoder a chat with an image is refused, not answered without it."""
    async with shims(RestOptions(generator=(f"g={folder}",))) as shim:
        body = {"model": "g", "messages": with_image("what")}
        answer = await shim.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_supported")
