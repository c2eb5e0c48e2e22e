"""From image to tokens on a real engine: what it is given is what it answers to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from tokenizers import Tokenizer

from tensorway.handoff import header, stream
from tensorway.handoff.features import Features, stacked
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2
from tests.handoff.prompts import IMAGE_TOKEN, PROMPTS, TAIL, ZEROS, picture, png
from tests.handoff.services import Launcher, Service, gathered

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GREEDY = generator_pb2.SamplingParams(temperature=0, max_tokens=12)
IMAGE = 49152
QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    """The model's tokenizer."""
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.fixture(scope="module")
def embeddings(smollm2: Path) -> np.ndarray:
    """The model's own rows for all tokens."""
    with safe_open(smollm2 / "model.safetensors", framework="np") as weights:
        return weights.get_tensor("model.embed_tokens.weight")


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """A user's turn, as the model was trained on it."""
    return encoded(tokenizer, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def start(ids: list[int], **fields: Any) -> generator_pb2.GenerateStart:
    """The first message of a request."""
    fields = {"sampling_params": GREEDY, **fields}
    return generator_pb2.GenerateStart(model="smollm2", prompt_token_ids=ids, **fields)


def request(ids: list[int], features: Features | None = None, version: int = 0, **fields: Any):
    """All messages of a request."""
    encoder = handoff_pb2.EncoderIdentity(model="test", element_type=1)
    result = None if features is None else header.write(features, version, encoder)
    yield generator_pb2.GenerateRequest(start=start(ids, encoder_result=result, **fields))
    if features is not None:
        yield from stream.cut(features.rows)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
async def test_rows_of_a_text_answer_as_the_text(
    generator: Service, tokenizer, embeddings, version: int, dtype: str
) -> None:
    """An image whose encoding is a text's own embeddings is the text, to the model."""
    ids = chat(tokenizer, QUESTION)
    expected = await generator.generate(request(ids))
    rows = embeddings[ids[3:12]].astype(getattr(ml_dtypes, dtype, dtype))
    features = Features(rows, (0, len(rows)), IMAGE)
    prompt = [*ids[:3], IMAGE, *ids[12:]]
    answer = await generator.generate(request(prompt, features, version, return_text=True))
    assert answer.text == "The capital of France is Paris."
    assert answer.token_ids == expected.token_ids
    assert answer.usage.prompt_tokens == len(ids) == expected.usage.prompt_tokens
    assert answer.finish_reason == generator_pb2.FINISH_REASON_STOP


async def test_the_answer_depends_on_the_image(
    generator: Service, router: Service, launcher: Launcher, smollm2: Path, tokenizer
) -> None:
    """Client, router, encoder, router, generator: another picture, another answer."""
    await launcher.start(
        "encoder_service",
        *("--backend", "encoder_service.colors:ColorEncoder", "--backend-model", str(smollm2)),
        *("--name", "colors", "--generator", router.address, "--router", router.address),
    )
    await router.lists("colors", "smollm2")
    question = "My car is<image>. What is the color of my car? Answer with one word."
    ids = chat(tokenizer, question)
    assert ids.count(IMAGE) == 1
    for color in ("red", "blue"):
        asked = encoder_pb2.EncoderServiceGenerateRequest(
            model="colors",
            target_model="smollm2",
            prompt_token_ids=ids,
            images=[handoff_pb2.ImageInput(data=png(Image.new("RGB", (40, 30), color)))],
            sampling_params=GREEDY,
            return_text=True,
            request_id="my-id",
        )
        answer = await gathered(router.encoder.Generate(asked, timeout=60))
        assert color in answer.text
        assert answer.messages > 1, "tokens are relayed as they come"
        assert answer.request_id == "my-id"


async def test_an_application_with_its_own_encoder(
    generator: Service, smollm2: Path, tmp_path: Path
) -> None:
    """The example answers, and answers to what it sees."""
    answers = {}
    for color in ("black", "white"):
        file = tmp_path / f"{color}.png"
        file.write_bytes(png(Image.new("RGB", (8, 8), color)))
        command = [sys.executable, "-m", "examples.own_encoder", smollm2, generator.address, file]
        ran = await asyncio.to_thread(
            subprocess.run, command, check=True, capture_output=True, text=True, timeout=60
        )
        answers[color] = ran.stdout
    assert answers == {"black": "The room is dark.", "white": "The room is bright."}


@pytest.fixture(scope="module")
async def eyes(launcher: Launcher, generator: Service, llava: Path) -> Service:
    """An encoder service with the vision tower of the tiny LLaVA."""
    return await launcher.start(
        "encoder_service",
        *("--backend", "encoder_service.huggingface:HuggingFaceEncoder"),
        *("--backend-model", str(llava), "--name", "eyes", "--generator", generator.address),
        env={"HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.parametrize("name", PROMPTS)
async def test_tokens_equal_those_of_transformers(
    generator: Service, eyes: Service, expected, name: str
) -> None:
    """Inline and external, 0, 1 and several images: the tokens of the undivided model."""
    ids = PROMPTS[name]
    images = [handoff_pb2.ImageInput(data=picture(i)) for i in range(ids.count(IMAGE_TOKEN))]
    asked = encoder_pb2.EncoderServiceGenerateRequest(
        model="eyes",
        target_model="smollm2",
        prompt_token_ids=ids,
        images=images,
        sampling_params=GREEDY,
    )
    external = await gathered(eyes.encoder.Generate(asked, timeout=60))
    first = generator_pb2.GenerateRequest(start=start(ids, images=images))
    inline = await generator.generate([first])
    assert external.token_ids == expected[name].tolist()
    assert inline.token_ids == expected[name].tolist()


async def test_prompts_that_differ_only_in_the_mask_share_no_answer(
    generator: Service, expected
) -> None:
    """A prefix cache that compares tokens and rows would take these two for equal."""
    zeros = np.zeros((1, 576), ml_dtypes.bfloat16)
    many = Features(np.repeat(zeros, ZEROS, axis=0), (0, ZEROS), IMAGE)
    one = Features(zeros, (0, 1), IMAGE)
    params = generator_pb2.SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    prompts = {
        "mask_many": ([1, IMAGE, 0, *TAIL], many),
        "mask_one": ([1, *[0] * ZEROS, IMAGE, *TAIL], one),
    }
    for _ in range(2):
        for name, (ids, features) in prompts.items():
            answer = await generator.generate(request(ids, features, sampling_params=params))
            token, logprob = answer.logprobs[0][0]
            assert token == int(expected[f"{name}_token"])
            assert logprob == pytest.approx(float(expected[f"{name}_logprob"]), abs=0.02)


async def test_identical_requests_get_identical_answers(generator: Service, make) -> None:
    """An answer does not depend on what ran before."""
    features = make(150, 20, width=576, token=IMAGE)
    ids = [1, 4093, IMAGE, 198, IMAGE, 47]
    answers = [await generator.generate(request(ids, features)) for _ in range(3)]
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


async def test_stacked_artifacts_are_images_in_order(generator: Service, embeddings) -> None:
    """Two images are two slots, and exchanging them exchanges what the model reads."""
    words = [embeddings[[260, 3575]], embeddings[[282, 4649]]]
    ids = [1, 4093, 198, 1780, 314]
    for order in (words, words[::-1]):
        plain = [token for rows in order for token in tokens_of(rows, embeddings)]
        expected = await generator.generate(request([*ids, *plain, 47]))
        features = stacked(order, IMAGE)
        answer = await generator.generate(request([*ids, IMAGE, IMAGE, 47], features))
        assert answer.token_ids == expected.token_ids


def tokens_of(rows: np.ndarray, embeddings: np.ndarray) -> list[int]:
    """The tokens whose embeddings the rows are."""
    return [int((embeddings == row).all(axis=1).argmax()) for row in rows]
