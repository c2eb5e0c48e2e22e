"""A late-interaction model (ColBERT) on a real engine, against transformers and numpy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from rest_shim.options import RestOptions
from tensorway.errors import FailedPrecondition, InvalidArgument
from tensorway.options import DialOptions
from tensorway.v1 import embedding_pb2, model_pb2, pooling_pb2
from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker, fails
from tests.rest_shim.conftest import served

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

WIDTH = 48
QUERY = "where do cats sleep"
DOCUMENTS = [
    "stocks fell today",
    "cats sleep anywhere they like",
    "the capital of France",
    "dogs sleep in a basket, and " + "so do cats, " * 20,
]
LONG = "word " * 600


@pytest.fixture(scope="module")
async def worker(launcher: Launcher, small_models: Path) -> Worker:
    """The model, without a flag that says what kind it is."""
    return await vllm.start(launcher, small_models / "colbert")


@pytest.fixture(scope="module")
async def expected(
    small_models: Path, reference: vllm.Reference
) -> tuple[list[list[int]], list[NDArray[np.float64]]]:
    """Ids of the query and the documents, and their tokens' vectors."""
    folder = small_models / "colbert"
    ids = await reference("tokens", folder, [QUERY, *DOCUMENTS])
    return ids, [np.array(own) for own in await reference("late", folder, ids)]


def max_sim(query: NDArray[Any], document: NDArray[Any]) -> float:
    """The best match of each token of the query, summed."""
    return float((query @ document.T).max(axis=1).sum())


def token_request(*texts: str, **fields: Any) -> pooling_pb2.TokenEmbedRequest:
    """A request for the vectors of texts."""
    return pooling_pb2.TokenEmbedRequest(model="small", texts={"texts": texts}, **fields)


def ids_request(*sequences: list[int], **fields: Any) -> pooling_pb2.TokenEmbedRequest:
    """A request for the vectors of token ids."""
    tokens = {"sequences": [{"ids": ids} for ids in sequences]}
    return pooling_pb2.TokenEmbedRequest(model="small", tokens=tokens, **fields)


def score_request(*documents: str, **fields: Any) -> pooling_pb2.ScoreRequest:
    """A request for the scores of documents, or of those above."""
    fields = {"query": QUERY, **fields}
    return pooling_pb2.ScoreRequest(model="small", documents=documents or DOCUMENTS, **fields)


def vectors(answer: Any) -> list[NDArray[np.float64]]:
    """The matrix of each input."""
    assert [own.index for own in answer.embeddings] == list(range(len(answer.embeddings)))
    return [
        np.array(own.values).reshape(own.tokens, answer.dimensions) for own in answer.embeddings
    ]


async def test_what_it_says_of_itself(worker: Worker) -> None:
    """Its tasks, and the width of the projection instead of that of the model below."""
    model = (await worker.itself()).model
    assert list(model.tasks) == [model_pb2.TASK_SCORE, model_pb2.TASK_TOKEN_EMBED]
    assert model.dimensions == WIDTH
    assert f"ready: small, {WIDTH} dimensions" in worker.output
    # How a model pools that gives every token does not matter, so nothing is warned of.
    assert "no sentence-transformers pooling config" not in worker.output


async def test_a_vector_for_each_token(worker: Worker, expected: Any) -> None:
    """As text and as ids those of transformers, of length 1; usage counts all tokens."""
    ids, wanted = expected
    for request in (token_request(QUERY, *DOCUMENTS), ids_request(*ids)):
        answer = await worker.pooling.TokenEmbed(request)
        assert answer.dimensions == WIDTH
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
        for got, own in zip(vectors(answer), wanted, strict=True):
            assert vllm.cosines(got, own).min() >= 0.9999
            np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-3)


async def test_company_changes_nothing(worker: Worker, expected: Any) -> None:
    """Requests that the engine batches together give what each gives alone."""
    texts, wanted = [QUERY, *DOCUMENTS], expected[1]
    calls = [worker.pooling.TokenEmbed(token_request(*texts[i % 5 :])) for i in range(20)]
    for i, answer in enumerate(await asyncio.gather(*calls)):
        for got, own in zip(vectors(answer), wanted[i % 5 :], strict=True):
            assert vllm.cosines(got, own).min() >= 0.9999


async def test_up_to_the_longest_input(worker: Worker) -> None:
    """One vector a token at the limit too; one more is refused, and cut when asked for."""
    limit = (await worker.itself()).model.max_model_len
    (longest,) = vectors(await worker.pooling.TokenEmbed(ids_request([2000] * limit)))
    assert longest.shape == (limit, WIDTH)
    over = ids_request([5], [2000] * (limit + 1))
    error = await fails(worker.pooling.TokenEmbed(over))
    assert (type(error), error.field) == (InvalidArgument, "tokens.sequences[1]")
    cut = await worker.pooling.TokenEmbed(token_request("hi", LONG, truncate_prompt_tokens=16))
    assert [own.tokens for own in cut.embeddings] == [3, 16]
    assert cut.usage.prompt_tokens == 19


async def test_scores(worker: Worker, expected: Any) -> None:
    """MaxSim in input order; usage counts the query once and every document."""
    ids, (query, *documents) = expected
    answer = await worker.pooling.Score(score_request())
    wanted = [max_sim(query, document) for document in documents]
    np.testing.assert_allclose(answer.scores, wanted, atol=1e-3)
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    # A text answers itself best: every token finds itself.
    (itself,) = (await worker.pooling.Score(score_request(QUERY))).scores
    assert itself == pytest.approx(len(ids[0]), abs=1e-3)


async def test_scores_of_cut_texts(
    worker: Worker, small_models: Path, reference: vllm.Reference
) -> None:
    """Query and documents are cut alike, each with its own special tokens."""
    ids = await reference("tokens", small_models / "colbert", [QUERY, LONG])
    cut = [own[:4] + own[-1:] for own in ids]
    wanted = await reference("late", small_models / "colbert", cut)
    answer = await worker.pooling.Score(score_request(LONG, truncate_prompt_tokens=5))
    score = max_sim(*map(np.array, wanted))
    np.testing.assert_allclose(answer.scores, [score], atol=1e-3)
    assert answer.usage.prompt_tokens == 10


async def test_ranking(worker: Worker, expected: Any) -> None:
    """Those that speak of sleeping cats first, whatever their length."""
    query, *documents = expected[1]
    request = pooling_pb2.RerankRequest(
        model="small", query=QUERY, documents=DOCUMENTS, top_n=3, return_documents=True
    )
    results = (await worker.pooling.Rerank(request)).results
    assert {result.index for result in results[:2]} == {1, 3}
    wanted = [max_sim(query, document) for document in documents]
    assert [result.index for result in results] == np.argsort(wanted)[::-1][:3].tolist()
    for result in results:
        assert result.relevance_score == pytest.approx(wanted[result.index], abs=1e-3)
        assert result.document == DOCUMENTS[result.index]


async def test_through_the_shim(worker: Worker, expected: Any) -> None:
    """/v1/score, /v1/rerank and /v1/pooling give the same numbers."""
    query, *documents = expected[1]
    wanted = [max_sim(query, document) for document in documents]
    options = RestOptions(port=0, router=worker.address)
    async with served(options, DialOptions()) as url, httpx.AsyncClient(base_url=url) as http:

        async def post(route: str, **body: Any) -> Any:
            answer = await http.post(f"/v1/{route}", json={"model": "small", **body})
            return answer.json()

        scored = await post("score", text_1=QUERY, text_2=DOCUMENTS)
        np.testing.assert_allclose([item["score"] for item in scored["data"]], wanted, atol=1e-3)
        ranked = (await post("rerank", query=QUERY, documents=DOCUMENTS))["results"]
        assert [item["index"] for item in ranked] == np.argsort(wanted)[::-1].tolist()
        pooled = (await post("pooling", input=QUERY))["data"][0]["data"]
        assert vllm.cosines(pooled, query).min() >= 0.9999
        refused = (await post("embeddings", input=QUERY))["error"]
        assert "does not support embed; it supports score, token_embed" in refused["message"]


async def test_tasks_that_it_does_not_have(worker: Worker) -> None:
    """FAILED_PRECONDITION with what it can do, also on a stream, which goes on."""
    texts = {"model": "small", "texts": {"texts": ["a"]}}
    sparse = worker.pooling.SparseEmbed(pooling_pb2.SparseEmbedRequest(**texts))
    classify = worker.pooling.Classify(pooling_pb2.ClassifyRequest(**texts))
    for call in (worker.embedding.Embed(worker.request("a")), sparse, classify):
        error = await fails(call)
        assert type(error) is FailedPrecondition
        assert "it supports score, token_embed" in str(error)
    requests = [worker.request("a", request_id=id_) for id_ in ("one", "two")]
    messages = [embedding_pb2.EmbedStreamRequest(request=request) for request in requests]
    answers = [answer async for answer in worker.embedding.EmbedStream(iter(messages))]
    assert {answer.request_id for answer in answers} == {"one", "two"}
    assert {answer.error.code for answer in answers} == {9}


@pytest.mark.parametrize("dimensions", [1, WIDTH - 1, WIDTH + 1, 384])
async def test_its_own_width_only(worker: Worker, dimensions: int) -> None:
    """It has no Matryoshka; its own width may be sent anyway."""
    answer = await worker.pooling.TokenEmbed(token_request("a", dimensions=WIDTH))
    assert answer.dimensions == WIDTH
    error = await fails(worker.pooling.TokenEmbed(token_request("a", dimensions=dimensions)))
    assert (type(error), error.field) == (InvalidArgument, "dimensions")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("TokenEmbed", token_request("a", ""), "texts.texts[1]"),
        ("TokenEmbed", token_request("a", LONG), "texts.texts[1]"),
        ("TokenEmbed", ids_request([5], [6, 30522]), "tokens.sequences[1].ids[1]"),
        ("TokenEmbed", ids_request([5], []), "tokens.sequences[1].ids"),
        ("TokenEmbed", token_request("a", truncate_prompt_tokens=2), "truncate_prompt_tokens"),
        ("TokenEmbed", token_request("a", prompt_name="query"), "prompt_name"),
        ("Score", score_request("a", query=""), "query"),
        ("Score", score_request("a", query=LONG), "query"),
        ("Score", score_request("a", ""), "documents[1]"),
        ("Score", score_request("a", "b", LONG), "documents[2]"),
        ("Score", score_request("a", truncate_prompt_tokens=2), "truncate_prompt_tokens"),
    ],
)
async def test_bad_input_names_its_place(
    worker: Worker, method: str, request_: Any, field: str
) -> None:
    """Refused with field and index, before the engine makes a step."""
    steps = "embed_worker_step_inputs_count{model=small}"
    before = (await worker.metrics())[steps]
    error = await fails(getattr(worker.pooling, method)(request_))
    assert (type(error), error.field) == (InvalidArgument, field)
    assert (await worker.metrics())[steps] == before
