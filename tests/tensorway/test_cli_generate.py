"""`tensorway generate`, through a real shim to a generator that says its prompt."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from rest_shim.options import RestOptions
from tensorway import errors
from tensorway.options import ListenOptions
from tests.rest_shim.conftest import Shim, start_shim
from tests.rest_shim.fake_generator import FakeGenerator
from tests.tensorway.cli import Result, start, tensorway

WORDS = ("?", "<image>", "system", "user", "hello", "there", "briefly")
TEMPLATE = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
HELLO = "<3><4><5>\n"


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shim]:
    """A shim in front of the generator `g`."""
    folder = tmp_path_factory.mktemp("model")
    ids = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    rest = RestOptions(generator=(f"g={folder}",), image_encoder="eye")
    async with start_shim(rest) as shim:
        yield shim


@pytest.fixture
def shim(running: Shim) -> Shim:
    """The same, with a generator that has forgotten everything."""
    vars(running.router.generator).update(vars(FakeGenerator()))
    return running


async def generate(shim: Shim, *args: str | Path, **more: bytes) -> Result:
    """The command, for the model `g`."""
    return await tensorway("generate", "--rest", shim.url, "--model", "g", *args, **more)


async def test_an_answer_in_text(shim: Shim) -> None:
    """A prompt from the command line or standard input; the answer, and a line end."""
    assert await generate(shim, "hello there") == Result(0, HELLO, "")
    assert await generate(shim, given=b"hello there\n") == Result(0, HELLO, "")


async def test_options_reach_the_generator(shim: Shim) -> None:
    """What the model is told first, and how tokens are chosen."""
    flags = ("--system", "briefly", "--max-tokens", "9", "--temperature", "0")
    result = await generate(shim, "hello", *flags)
    assert result.out == "<2><6><3><4>\n"
    params = shim.router.generator.requests[0].sampling_params
    assert (params.max_tokens, params.temperature) == (9, 0)
    assert params.HasField("temperature")


async def test_images(shim: Shim, tmp_path: Path) -> None:
    """A file travels whole, a URL as it is, each with its place in the prompt."""
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG, or so")
    images = ("--image", picture, "--image", "https://example.com/a.jpg")
    result = await generate(shim, "hello", *images)
    assert (result.status, result.err) == (0, "")
    (request,) = shim.router.generator.requests
    assert request.model == "eye"
    assert [image.url for image in request.images] == [
        f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}",
        "https://example.com/a.jpg",
    ]


async def test_images_have_places(shim: Shim) -> None:
    """In the order of the command line; the first ones, where there are too few places."""
    urls = [f"https://example.com/{name}.jpg" for name in "abc"]
    images = [flag for url in urls for flag in ("--image", url)]
    result = await generate(shim, "hello {image} there {image}", *images)
    assert (result.out, result.err) == ("<3><1><4><1><5><1>\n", "")
    assert [image.url for image in shim.router.generator.requests[0].images] == urls
    result = await generate(shim, "{image} {image}", *images[:2])
    assert result.status == 2
    assert "--image: the prompt has 2 {image}, got 1 images" in result.err


async def test_the_whole_answer_as_json(shim: Shim) -> None:
    """OpenAI's shape, with the cost."""
    answer = json.loads((await generate(shim, "hello there", "--json")).out)
    assert answer["choices"][0]["message"]["content"] == HELLO.strip()
    assert answer["usage"]["total_tokens"] == 6


async def test_tokens_come_one_by_one(shim: Shim) -> None:
    """What is generated is printed at once, long before the end."""
    shim.router.generator.endless = True
    process = await start("generate", "hello", "--model", "g", "--rest", shim.url)
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readexactly(9), 30) == b"<3><4><0>"
    process.kill()
    await process.communicate()
    await asyncio.wait_for(shim.router.generator.ended.wait(), 10)


async def test_errors_are_one_line(shim: Shim) -> None:
    """Before the answer and in the middle of it; status 1, and what came until then."""
    generator = shim.router.generator
    generator.error = errors.ResourceExhausted("busy")
    result = await generate(shim, "hello")
    assert result == Result(1, "", f"Error: {shim.url}/v1/chat/completions: busy\n")
    generator.error_after = 1
    result = await generate(shim, "hello")
    assert (result.status, result.out) == (1, "<3>")
    assert "busy" in result.err


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (("hello",), 2, "--model: which one?"),
        (("hello", "--model", "g", "--image", "nowhere.png"), 2, "--image: [Errno 2]"),
        (("hello", "--model", "g", "--rest", "ftp://here"), 2, "--rest: expected http"),
        (("hello", "--model", "g", "--rest", "http://127.0.0.1:1"), 1, "Connection refused"),
    ],
)
async def test_what_cannot_work(args: tuple[str, ...], status: int, why: str) -> None:
    """One line says what."""
    result = await tensorway("generate", *args)
    assert result.status == status
    assert why in result.err
    assert result.err.count("\n") == 1


async def test_a_bearer_token(tmp_path: Path) -> None:
    """A shim that asks for one takes that of the file."""
    token = tmp_path / "token"
    token.write_text("secret")
    async with start_shim(RestOptions(token_file=token), router_options=ListenOptions()) as shim:
        refused = await generate(shim, "hello")
        assert refused.status == 1
        assert "authorization" in refused.err
        known = await generate(shim, "hello", "--token-file", token)
        assert "'g' does not generate here" in known.err
