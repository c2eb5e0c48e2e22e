"""Bad input: one clear error that names field and index, before any engine work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensorway.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    TensorwayError,
    TooLarge,
)
from tensorway.v1 import embedding_pb2, pooling_pb2
from tests.embed_worker.launch import Launcher, Worker, fails

STEPS = "embed_worker_step_inputs_count{model=fake}"
VOCAB = 1024


def texts(*given: str) -> dict[str, Any]:
    """The input of a request, as text."""
    return {"texts": {"texts": given}}


def ids(*given: list[int]) -> dict[str, Any]:
    """The input of a request, as token ids."""
    return {"tokens": {"sequences": [{"ids": ids} for ids in given]}}


BAD_INPUTS = [
    pytest.param({}, "input", "expected texts or tokens, got neither", id="no input"),
    pytest.param(texts(), "texts.texts", "at least one input, got none", id="no texts"),
    pytest.param(texts(""), "texts.texts[0]", "empty string", id="empty text"),
    pytest.param(texts("a", "b", ""), "texts.texts[2]", "empty string", id="empty text among"),
    pytest.param(ids(), "tokens.sequences", "at least one input, got none", id="no sequences"),
    pytest.param(ids([]), "tokens.sequences[0].ids", "got none", id="no ids"),
    pytest.param(ids([1], []), "tokens.sequences[1].ids", "got none", id="no ids among"),
    pytest.param(
        ids([VOCAB]), "tokens.sequences[0].ids[0]", "0 to 1023, got 1024", id="id outside"
    ),
    pytest.param(
        ids([5], [3, 2**31 - 1]),
        "tokens.sequences[1].ids[1]",
        "0 to 1023, got 2147483647",
        id="largest signed id among",
    ),
    pytest.param(
        ids([2**32 - 1]), "tokens.sequences[0].ids[0]", "got 4294967295", id="-1 as unsigned"
    ),
    pytest.param(
        texts("a", "b" * 63), "texts.texts[1]", "at most 64 tokens, got 65", id="text too long"
    ),
    pytest.param(
        ids([5] * 65), "tokens.sequences[0]", "at most 64 tokens, got 65", id="too many ids"
    ),
]
BAD_OPTIONS = [
    pytest.param({"dimensions": 0}, "dimensions", "1 to 8, got 0", id="no dimensions"),
    pytest.param({"dimensions": -1}, "dimensions", "1 to 8, got -1", id="negative dimensions"),
    pytest.param({"dimensions": 9}, "dimensions", "1 to 8, got 9", id="dimensions over width"),
    pytest.param(
        {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "got 0", id="cut to nothing"
    ),
    pytest.param(
        {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "got -2", id="cut to -2"
    ),
    pytest.param(
        {"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "got 65", id="cut over limit"
    ),
    pytest.param(
        {"truncate_prompt_tokens": 2},
        "truncate_prompt_tokens",
        "-1 or 3 to 64, got 2",
        id="cut to special tokens only",
    ),
]
EMBED_OPTIONS = [
    pytest.param({"element_type": 99}, "element_type", "known type, got 99", id="element type"),
    pytest.param({"request_id": "x" * 129}, "request_id", "got 129", id="long request id"),
    pytest.param(
        {"prompt_name": "zz"}, "prompt_name", "known: document, query", id="unknown prompt"
    ),
    pytest.param(
        {"prompt_name": "query", **ids([5])}, "prompt_name", "token ids", id="prompt with ids"
    ),
]


def check(error: TensorwayError, field: str, message: str) -> None:
    """It is the caller's error, and says where and why, to people and to machines."""
    assert type(error) is InvalidArgument
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert message in str(error)


@pytest.mark.parametrize(("fields", "field", "message"), BAD_INPUTS)
@pytest.mark.parametrize("method", ["Embed", "TokenEmbed"])
async def test_bad_input(
    worker: Worker, method: str, fields: dict[str, Any], field: str, message: str
) -> None:
    """Refused before the engine sees any of it, by every RPC that takes inputs."""
    before = await worker.metrics()
    check(await fails(call(worker, method, **fields)), field, message)
    assert (await worker.metrics())[STEPS] == before[STEPS]


@pytest.mark.parametrize(("options", "field", "message"), [*BAD_OPTIONS, *EMBED_OPTIONS])
async def test_bad_options(
    worker: Worker, options: dict[str, Any], field: str, message: str
) -> None:
    """An option that cannot be met is refused, never ignored or clamped."""
    before = await worker.metrics()
    fields = texts("hello") | options
    if "tokens" in options:
        del fields["texts"]
    check(await fails(call(worker, "Embed", **fields)), field, message)
    assert (await worker.metrics())[STEPS] == before[STEPS]


QUERIES = [
    pytest.param({"query": "", "documents": ["a"]}, "query", "empty string", id="no query"),
    pytest.param({"query": "a"}, "documents", "got none", id="no documents"),
    pytest.param({"query": "a", "documents": ["b", ""]}, "documents[1]", "empty", id="empty one"),
    pytest.param({"query": "a" * 99, "documents": ["b"]}, "query", "got 101", id="long query"),
    pytest.param({"query": "a", "documents": ["b", "c" * 99]}, "documents[1]", "101", id="long"),
    pytest.param(
        {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 2},
        "truncate_prompt_tokens",
        "-1 or 3 to 64",
        id="cut too short",
    ),
]


@pytest.mark.parametrize(("fields", "field", "message"), QUERIES)
@pytest.mark.parametrize("method", ["Score", "Rerank"])
async def test_bad_queries(
    worker: Worker, method: str, fields: dict[str, Any], field: str, message: str
) -> None:
    """A query and its documents are checked like inputs."""
    check(await fails(call(worker, method, **fields)), field, message)


@pytest.mark.parametrize("top_n", [0, -1])
async def test_no_results(worker: Worker, top_n: int) -> None:
    """Rerank gives at least one result."""
    error = await fails(call(worker, "Rerank", query="a", documents=["b"], top_n=top_n))
    check(error, "top_n", f"at least 1, got {top_n}")


@pytest.mark.parametrize("method", ["Embed", "TokenEmbed", "Score", "Classify"])
async def test_unknown_model(worker: Worker, method: str) -> None:
    """Never a vector of some other model: NOT_FOUND with the names that are known."""
    for name in ("other", "Fake", "fake "):
        error = await fails(call(worker, method, model=name))
        assert type(error) is NotFound
        assert (error.field, "known: fake, alias" in str(error)) == ("model", True)
    check(await fails(call(worker, method, model="")), "model", "expected a name, got none")


@pytest.mark.parametrize("method", ["SparseEmbed", "Classify"])
async def test_a_task_that_the_model_does_not_have(worker: Worker, method: str) -> None:
    """FAILED_PRECONDITION, with what the model can do."""
    error = await fails(call(worker, method, **texts("a")))
    assert type(error) is FailedPrecondition
    assert "it supports embed, score, token_embed" in str(error)


async def test_too_many_inputs(worker: Worker) -> None:
    """More inputs than a request may have: coming back does not help."""
    error = await fails(call(worker, "Embed", **texts(*["a"] * 2049)))
    assert type(error) is TooLarge
    assert str(error) == "texts.texts: expected at most 2048 inputs (--max-inputs), got 2049"
    assert error.field == "texts.texts"


async def test_vectors_that_no_answer_holds(start: Launcher) -> None:
    """Refused before the engine works for them; what just fits is answered."""
    # A vector is 16 KiB, a message 1 MiB, which has room for other fields besides.
    worker = await start.start("--dimensions", "4096", "--max-message-mib", "1")
    error = await fails(call(worker, "TokenEmbed", **ids([5] * 40, [6] * 25)))
    assert type(error) is TooLarge
    assert "expected at most 64 tokens in a request, got 65" in str(error)
    assert (await worker.metrics()).get(STEPS, 0) == 0
    answer = await call(worker, "TokenEmbed", **ids([5] * 40, [6] * 23))
    assert sum(embedding.tokens for embedding in answer.embeddings) == 63


async def test_not_a_message(worker: Worker) -> None:
    """Bytes that are no request, and text that is no UTF-8, are the caller's error."""
    send = worker.channel.unary_unary("/tensorway.v1.EmbeddingService/Embed")
    lone_surrogate = b"\x0a\x04fake\x12\x05\x0a\x03\xed\xa0\xbd"
    for message in (b"\xff\xff\xff", lone_surrogate):
        error = await fails(send(message))
        assert (type(error), str(error)) == (InvalidArgument, "not a valid EmbedRequest")


async def test_only_the_native_width_without_matryoshka(start: Any) -> None:
    """A model that cannot be cut accepts its own width, which clients send anyway."""
    worker = await start.start()
    (vector,) = await worker.embed("hello", dimensions=8)
    assert len(vector) == 8
    error = await fails(worker.embedding.Embed(worker.request("hello", dimensions=4)))
    check(error, "dimensions", "no Matryoshka support")


async def test_one_bad_input_among_64_requests(worker: Worker) -> None:
    """Only the request with the bad input fails, which has 63 good ones besides."""
    good = [worker.embed(f"text {i}") for i in range(63)]
    bad = fails(call(worker, "Embed", **ids(*[[3]] * 63, [VOCAB])))
    error, *vectors = await asyncio.gather(bad, *good)
    check(error, "tokens.sequences[63].ids[0]", "got 1024")
    assert [vector.shape for vector in vectors] == [(1, 8)] * 63


async def test_nan_is_an_error_of_that_input(worker: Worker) -> None:
    """NaN from the model is never sent; requests beside it are answered."""
    nan = fails(call(worker, "Embed", **ids([3], [1000], [4])))
    error, *vectors = await asyncio.gather(nan, *(worker.embed(f"text {i}") for i in range(20)))
    assert type(error) is Internal
    assert (str(error), error.reason) == (
        "tokens.sequences[1]: the model gave NaN or infinity",
        "NOT_FINITE",
    )
    assert len(vectors) == 20


def call(worker: Worker, method: str, model: str = "fake", **fields: Any) -> Any:
    """Start an RPC of the worker."""
    package = embedding_pb2 if method == "Embed" else pooling_pb2
    stub = worker.embedding if method == "Embed" else worker.pooling
    request = getattr(package, f"{method}Request")(model=model, **fields)
    return getattr(stub, method)(request, timeout=10)


async def test_unknown_priority(worker: Worker) -> None:
    """A priority that the contract does not have is refused, as any unknown value is."""
    error = await fails(worker.embedding.Embed(worker.request("a", priority=77)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "priority"
