"""Bad requests: status 400 in OpenAI's shape, naming the field, and the shim goes on."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from rest_shim import amounts
from rest_shim.options import RestOptions
from tests.rest_shim.conftest import Shim, Shims
from tests.rest_shim.fakes import MODEL


async def refused(shim: Shim, response: Any, status: int = 400) -> dict[str, Any]:
    """The error of an answer, after checking its shape and that the shim still serves."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(response.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (await shim.embed(input="still there")).status_code == 200
    return error


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        pytest.param([], "input", "at least one", id="empty list"),
        pytest.param("", "input[0]", "empty", id="empty text"),
        pytest.param([[]], "input[0]", "empty", id="no ids"),
        pytest.param(["a", ""], "input[1]", "empty", id="empty text among others"),
        pytest.param(["a", [1]], "input[1]", "expected a text", id="ids among texts"),
        pytest.param(["a", 1], "input[1]", "expected a text", id="id among texts"),
        pytest.param([1, "a"], "input[1]", "expected a token id", id="text among ids"),
        pytest.param([[1], "a"], "input[1]", "expected a list", id="text among lists"),
        pytest.param([1.5], "input[0]", "float", id="float"),
        pytest.param([[1, 2.0]], "input[0][1]", "float", id="float among ids"),
        pytest.param([True], "input[0]", "bool", id="boolean"),
        pytest.param([[1, False]], "input[0][1]", "bool", id="boolean among ids"),
        pytest.param([[[1]]], "input[0][0]", "array", id="too deep"),
        pytest.param({"text": "a"}, "input", "object", id="object"),
        pytest.param(7, "input", "int", id="number"),
        pytest.param(None, "input", "null", id="null"),
        pytest.param([5, -1], "input[1]", "-1", id="negative id"),
        pytest.param([[1], [5, -1]], "input[1][1]", "-1", id="negative id in a batch"),
        pytest.param([2**32], "input[0]", f"0 to {2**32 - 1}", id="id over 32 bits"),
        pytest.param([[1], [2**31 - 1]], "input[1][0]", "0 to 999", id="id outside the vocabulary"),
    ],
)
async def test_bad_input_names_its_place(shim: Shim, given: Any, param: str, words: str):
    """The error says which input, and what was expected there."""
    error = await refused(shim, await shim.embed(input=given))
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_argument")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "int8"),
        ("encoding_format", 7),
        ("dimensions", 1.5),
        ("dimensions", "64"),
        ("dimensions", True),
        ("dimensions", 2**31),
        ("truncate_prompt_tokens", "all"),
        ("add_special_tokens", "no"),
        ("prompt_name", 1),
        ("model", None),
        ("model", 3),
        ("embed_dtype", "float16"),
        ("endianness", "big"),
        ("use_activation", False),
    ],
)
async def test_bad_field_is_named(shim: Shim, field: str, value: Any):
    """The error's param is the field."""
    error = await refused(shim, await shim.embed(**{"input": "x", field: value}))
    assert error["param"] == field


@pytest.mark.parametrize("field", ["model", "input"])
async def test_missing_field_is_named(shim: Shim, field: str):
    """A field that must be there and is not is the error's param."""
    body = {"model": MODEL, "input": "x"}
    del body[field]
    error = await refused(shim, await shim.http.post("/v1/embeddings", json=body))
    assert (error["param"], error["message"]) == (field, f"{field}: is required")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"model":"m"}', id="no input"),
        pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
        pytest.param(b'{"model":"m","input":"a"} x', id="more after it"),
        pytest.param(b'{"model":"m","input":"\xff"}', id="not UTF-8"),
        pytest.param(b'{"model":"m","input":"\xed\xa0\x80"}', id="surrogate as UTF-8"),
        pytest.param(b'{"model":"m","input":"\\ud83d"}', id="lone high surrogate"),
        pytest.param(b'{"model":"m","input":"\\ude00x"}', id="lone low surrogate"),
        pytest.param(b'{"model":"\\ud800","input":"x"}', id="surrogate in the name"),
        pytest.param(b'{"x":' + b"[" * 200_000, id="nested without end"),
    ],
)
async def test_body_that_is_no_request_is_refused(shim: Shim, body: bytes):
    """Broken JSON and broken text are the caller's mistake, never status 500."""
    error = await refused(shim, await shim.post(body))
    assert error["code"] == "invalid_argument"


async def test_half_of_a_surrogate_pair_is_named(shim: Shim):
    """JSON that is cut off by nobody but a bad character says so."""
    error = await refused(shim, await shim.post(b'{"model":"m","input":"\\ud83d"}'))
    assert error["message"].endswith("half of a surrogate pair is no character")


@pytest.mark.parametrize(
    ("start", "item", "status", "param"),
    [
        pytest.param(b"", b"[]", 413, "input", id="lists"),
        pytest.param(b"", b'""', 413, None, id="texts"),
        pytest.param(b'"a",', b"[]", 400, "input", id="lists behind a text"),
        pytest.param(b"1,", b"[]", 400, "input", id="lists behind an id"),
    ],
)
async def test_bodies_that_would_fill_the_memory(
    shim: Shim, start: bytes, item: bytes, status: int, param: str | None
):
    """More texts or lists than anybody wants are refused before they become objects."""
    items = start + b",".join([item] * (amounts.MOST + 1))
    body = b'{"model":"%b","input":[%b]}' % (MODEL.encode(), items)
    error = await refused(shim, await shim.post(body), status)
    assert error["param"] == param


@pytest.mark.parametrize("text", ["[" * 70_000, '"' * 200_000, "],[" * 70_000 + '\\"'])
async def test_what_texts_hold_is_not_counted(shim: Shim, text: str):
    """Brackets and quotes in texts are texts."""
    for given in (text, [text, text]):
        assert (await shim.embed(input=given)).status_code == 200
    assert shim.router.requests[-1].texts.texts[1] == text


async def test_compressed_body_is_named(shim: Shim):
    """A body in an encoding that is not read here is refused as such, not as broken JSON."""
    headers = {"content-encoding": "gzip"}
    body = gzip.compress(b'{"model": "m", "input": "x"}')
    answer = await shim.http.post("/v1/embeddings", content=body, headers=headers)
    error = await refused(shim, answer)
    assert error["param"] == "content-encoding"
    assert error["message"].endswith("expected identity or none, got 'gzip'")


async def test_bad_choice_lists_the_good_ones(shim: Shim):
    """Where only some values are allowed, the error names them."""
    error = await refused(shim, await shim.embed(input="x", encoding_format="int8"))
    expected = "encoding_format: expected one of base64, float, got 'int8'"
    assert error["message"] == expected


async def test_strict_refuses_unknown_fields(shims: Shims):
    """With --strict a misspelt field is an error that names it."""
    async with shims(RestOptions(strict=True)) as shim:
        error = await refused(shim, await shim.embed(input="x", dimension=3))
        assert "dimension" in error["message"]


async def test_unknown_model_is_not_found(shim: Shim):
    """A wrong name is 404 with model_not_found, never a vector of some other model."""
    for name in (f"{MODEL} ", "Minilm", ""):
        error = await refused(shim, await shim.embed(model=name, input="x"), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_unknown_route_and_method(shim: Shim):
    """Routes and methods that do not exist are refused in the same shape."""
    missing = await shim.http.post("/v1/embedding")
    assert "/v1/embedding" in (await refused(shim, missing, 404))["message"]
    await refused(shim, await shim.http.post("/v1/embeddings/"), 404)
    other = await shim.http.put("/v1/embeddings")
    assert "PUT" in (await refused(shim, other, 405))["message"]
    assert other.headers["allow"] == "POST"
