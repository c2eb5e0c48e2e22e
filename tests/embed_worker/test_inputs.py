"""Every form of input that is accepted, and the vectors that come of it."""

from __future__ import annotations

import numpy as np
import pytest

from embed_worker.fake_engine import vector
from tensorway.v1 import embedding_pb2, model_pb2
from tests.embed_worker.launch import Worker, rows

CLS, SEP = 1, 2
WIDTH = 8


def ids_of(text: str) -> list[int]:
    """What the fake engine's tokenizer makes of a text."""
    return [CLS, *(ord(letter) if ord(letter) < 1024 else 0 for letter in text), SEP]


def expected(*sequences: list[int], width: int = WIDTH) -> np.ndarray:
    """The fake engine's own vectors, computed here."""
    return np.stack([vector(ids, width) for ids in sequences])


async def embed(worker: Worker, request: embedding_pb2.EmbedRequest) -> np.ndarray:
    """Vectors of a request, [inputs, width]."""
    return rows(await worker.embedding.Embed(request, timeout=10))


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["hello"], id="one text"),
        pytest.param(["hello", "hello world", "x"], id="list of mixed lengths"),
        pytest.param(["one", "two", "six"], id="list of equal lengths"),
        pytest.param(["same", "same"], id="the same text twice"),
        pytest.param(["\0", "emoji 🙂", "Ünïcödé 東京"], id="NUL and four-byte letters"),
        pytest.param([f"text {i}" for i in range(300)], id="more than many steps hold"),
    ],
)
async def test_texts(worker: Worker, texts: list[str]) -> None:
    """Each text gets its own vector, in input order."""
    vectors = await embed(worker, worker.request(*texts))
    np.testing.assert_array_equal(vectors, expected(*map(ids_of, texts)))


@pytest.mark.parametrize(
    "sequences",
    [
        pytest.param([[101, 102]], id="one list of ids"),
        pytest.param([[101, 102], [103]], id="list of lists"),
        pytest.param([[0], [1023]], id="first and last id of the vocabulary"),
    ],
)
async def test_token_ids(worker: Worker, sequences: list[list[int]]) -> None:
    """Token ids are used as given: nothing is added."""
    np.testing.assert_array_equal(await embed(worker, worker.ids(*sequences)), expected(*sequences))


async def test_a_text_and_its_own_ids_are_the_same(worker: Worker) -> None:
    """Same vector and same usage, whichever way the caller asks."""
    by_text = await worker.embedding.Embed(worker.request("hello"))
    by_ids = await worker.embedding.Embed(worker.ids(ids_of("hello")))
    np.testing.assert_array_equal(rows(by_text), rows(by_ids))
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens == 7


async def test_without_special_tokens(worker: Worker) -> None:
    """Special tokens are left out when the caller says so, and only then."""
    vectors = await embed(worker, worker.request("hello", add_special_tokens=False))
    np.testing.assert_array_equal(vectors, expected(ids_of("hello")[1:-1]))
    assert not np.array_equal(vectors, await embed(worker, worker.request("hello")))


@pytest.mark.parametrize("name", ["query", "document"])
async def test_a_named_prompt_is_put_before_each_text(worker: Worker, name: str) -> None:
    """Same as the caller's own prefix, in vectors and in usage."""
    named = await worker.embedding.Embed(worker.request("hello", "you", prompt_name=name))
    own = await worker.embedding.Embed(worker.request(f"{name}: hello", f"{name}: you"))
    np.testing.assert_array_equal(rows(named), rows(own))
    assert named.usage == own.usage


async def test_no_hidden_prompt(worker: Worker) -> None:
    """A model that has prompts uses none unless asked."""
    answer = await worker.embedding.Embed(worker.request("hello"))
    np.testing.assert_array_equal(rows(answer), expected(ids_of("hello")))


@pytest.mark.parametrize("dimensions", range(1, WIDTH + 1))
async def test_every_value_of_dimensions(worker: Worker, dimensions: int) -> None:
    """Fewer dimensions are the cut vector, normalised again."""
    (full,) = await embed(worker, worker.request("hello"))
    answer = await worker.embedding.Embed(worker.request("hello", dimensions=dimensions))
    cut = full[:dimensions] / np.linalg.norm(full[:dimensions])
    np.testing.assert_allclose(rows(answer)[0], cut, atol=1e-6)
    assert answer.dimensions == dimensions


async def test_an_answer_says_what_it_is(worker: Worker) -> None:
    """The name as asked for, the width, the tokens and the caller's id."""
    answer = await worker.embedding.Embed(worker.request("hi", "you", request_id="mine"))
    assert (answer.model, answer.dimensions, answer.request_id) == ("fake", WIDTH, "mine")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (9, 9)


async def test_the_call_s_id_when_the_request_has_none(worker: Worker) -> None:
    """The x-request-id of the call is the request's id too."""
    call = worker.embedding.Embed(worker.request("hi"), metadata=(("x-request-id", "of-call"),))
    assert (await call).request_id == "of-call"


async def test_aliases_are_the_model(worker: Worker) -> None:
    """Every served name answers, under the name that was asked for, and is listed."""
    request = worker.request("hi")
    request.model = "alias"
    assert (await worker.embedding.Embed(request)).model == "alias"
    model = (await worker.models.GetModel(model_pb2.GetModelRequest(model="alias"))).model
    assert (model.name, list(model.aliases)) == ("fake", ["alias"])


async def test_a_worker_describes_itself(worker: Worker) -> None:
    """ModelService of a worker shows its model, with the limits that callers must know."""
    itself = await worker.itself()
    (model,) = (await worker.models.ListModels(model_pb2.ListModelsRequest())).models
    assert itself.model == model
    assert (model.dimensions, model.max_model_len, model.vocab_size) == (WIDTH, 64, 1024)
    assert model.is_matryoshka
    assert list(model.prompt_names) == ["document", "query"]
    assert itself.address == worker.address
    assert itself.state == model_pb2.WORKER_STATE_READY
