"""POST /v1/embeddings: forms of input, encodings, and what reaches the router."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.rest_shim.conftest import Shim
from tests.rest_shim.fakes import ALIAS, MODEL, vector


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        pytest.param("hello", ["hello"], id="text"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param([101, 102], [[101, 102]], id="one list of ids is one input"),
        pytest.param([[101, 102], [103]], [[101, 102], [103]], id="lists of ids"),
        pytest.param("nul \0 and \U0001f600", ["nul \0 and \U0001f600"], id="odd characters"),
    ],
)
async def test_every_form_of_input_is_answered_in_order(shim: Shim, given: Any, inputs: Any):
    """One vector for each input, in input order."""
    answer = (await shim.embed(input=given)).json()
    assert [d["index"] for d in answer["data"]] == list(range(len(inputs)))
    assert [d["object"] for d in answer["data"]] == ["embedding"] * len(inputs)
    got = np.array([d["embedding"] for d in answer["data"]], "<f4")
    assert np.array_equal(got, [vector(value) for value in inputs])


async def test_answer_has_openais_shape(shim: Shim):
    """The fields around the vectors are OpenAI's, and the model is the one asked for."""
    answer = (await shim.embed(model=ALIAS, input="ab")).json()
    del answer["data"]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    assert answer == {"object": "list", "model": ALIAS, "usage": usage}


async def test_base64_is_the_same_numbers(shim: Shim):
    """Base64 is little-endian float32, equal to the floats bit by bit."""
    floats = (await shim.embed(input="x", encoding_format="float")).json()["data"][0]
    packed = (await shim.embed(input="x", encoding_format="base64")).json()["data"][0]
    decoded = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert np.array_equal(decoded, np.array(floats["embedding"], "<f4"))
    assert np.array_equal(decoded, vector("x"))


async def test_null_is_absent_and_unknown_fields_are_ignored(shim: Shim):
    """Clients that send every optional field as null, and fields of their own, are served."""
    optional = ("encoding_format", "dimensions", "user", "truncate_prompt_tokens", "prompt_name")
    theirs = {"embed_dtype": "float32", "endianness": "native", "use_activation": True}
    body = dict.fromkeys(optional) | theirs | {"input_type": "query", "made_up": [1]}
    answer = await shim.embed(input="x", **body)
    assert answer.status_code == 200
    request = shim.router.requests[-1]
    assert not request.HasField("dimensions")
    assert not request.HasField("truncate_prompt_tokens")
    assert isinstance(answer.json()["data"][0]["embedding"], list)


async def test_options_reach_the_router(shim: Shim):
    """What the shim does not decide itself is passed on as it is."""
    await shim.embed(
        input="x",
        dimensions=0,
        truncate_prompt_tokens=-1,
        add_special_tokens=False,
        prompt_name="query",
        user={"any": "thing"},
    )
    request = shim.router.requests[-1]
    assert (request.model, list(request.texts.texts)) == (MODEL, ["x"])
    assert (request.dimensions, request.truncate_prompt_tokens) == (0, -1)
    assert (request.add_special_tokens, request.prompt_name) == (False, "query")
    assert request.HasField("dimensions")
    assert request.HasField("add_special_tokens")


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
async def test_2048_inputs_are_answered(shim: Shim, encoding_format: str):
    """OpenAI's largest batch, in an answer that is sent in slices."""
    shim.router.width = 512
    texts = [f"text {i}" for i in range(2048)]
    data = (await shim.embed(input=texts, encoding_format=encoding_format)).json()["data"]
    assert [d["index"] for d in data] == list(range(2048))
    for index in (0, 511, 512, 2047):
        assert np.array_equal(_numbers(data[index]["embedding"]), vector(texts[index], 512))


def _numbers(embedding: str | list[float]) -> np.ndarray:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4")
    return np.array(embedding, "<f4")
