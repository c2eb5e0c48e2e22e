"""The other pooling tasks on the fake engine, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from embed_worker import scoring
from embed_worker.fake_engine import vector
from tensorway.v1 import model_pb2, pooling_pb2
from tests.embed_worker.launch import Worker

QUERY, DOCUMENTS = "who", ["you", "me", "who", "nobody", "who"]


def ids_of(text: str) -> list[int]:
    """What the fake engine's tokenizer makes of a text."""
    return [1, *map(ord, text), 2]


def cosines() -> np.ndarray:
    """Cosine of the query to each document."""
    query = vector(ids_of(QUERY), 8).astype(np.float64)
    return np.array([query @ vector(ids_of(text), 8) for text in DOCUMENTS])


async def test_models_say_what_they_can(worker: Worker) -> None:
    """ModelService lists the tasks of the model."""
    tasks = set((await worker.itself()).model.tasks)
    assert tasks == {model_pb2.TASK_EMBED, model_pb2.TASK_TOKEN_EMBED, model_pb2.TASK_SCORE}


async def test_token_vectors(worker: Worker) -> None:
    """One vector for each token of each input, special tokens included."""
    request = pooling_pb2.TokenEmbedRequest(
        model="fake", texts={"texts": ["ab", "x"]}, request_id="mine"
    )
    answer = await worker.pooling.TokenEmbed(request)
    assert (answer.dimensions, answer.request_id, answer.usage.prompt_tokens) == (8, "mine", 7)
    for index, (embedding, text) in enumerate(zip(answer.embeddings, ["ab", "x"], strict=True)):
        expected = np.stack([vector([token], 8) for token in ids_of(text)])
        assert (embedding.index, embedding.tokens) == (index, len(expected))
        got = np.array(embedding.values, np.float32).reshape(embedding.tokens, answer.dimensions)
        np.testing.assert_array_equal(got, expected)


async def test_scores_are_cosines_in_input_order(worker: Worker) -> None:
    """An embedding model scores by the cosine; usage counts query and documents."""
    request = pooling_pb2.ScoreRequest(model="fake", query=QUERY, documents=DOCUMENTS)
    answer = await worker.pooling.Score(request)
    np.testing.assert_allclose(answer.scores, cosines(), atol=1e-6)
    assert answer.usage.prompt_tokens == sum(map(len, [QUERY, *DOCUMENTS])) + 2 * 6


@pytest.mark.parametrize("top_n", [None, 1, 3, 99])
async def test_rerank_gives_the_best_first(worker: Worker, top_n: int | None) -> None:
    """Equal scores stay in input order."""
    request = pooling_pb2.RerankRequest(
        model="fake", query=QUERY, documents=DOCUMENTS, top_n=top_n, return_documents=True
    )
    results = (await worker.pooling.Rerank(request)).results
    order = np.argsort(-np.round(cosines(), 5), kind="stable")[:top_n].tolist()
    assert [result.index for result in results] == order
    assert [result.document for result in results] == [DOCUMENTS[index] for index in order]
    scores = [result.relevance_score for result in results]
    np.testing.assert_allclose(scores, cosines()[order], atol=1e-6)


async def test_documents_come_back_only_when_asked_for(worker: Worker) -> None:
    """By default a result is an index and a score."""
    request = pooling_pb2.RerankRequest(model="fake", query=QUERY, documents=DOCUMENTS)
    assert not any(r.document for r in (await worker.pooling.Rerank(request)).results)


async def test_scores_are_cut_with_their_texts(worker: Worker) -> None:
    """A long document is cut when the caller allows it."""
    request = pooling_pb2.ScoreRequest(
        model="fake", query="a", documents=["b" * 99], truncate_prompt_tokens=-1
    )
    assert (await worker.pooling.Score(request)).usage.prompt_tokens == 3 + 64


def test_max_sim() -> None:
    """For each token of the query its best token of the document, summed."""
    query = np.array([[1, 0], [0, 1]], np.float32)
    first = np.array([[0.5, 0.5], [0.9, 0.1], [0, 0.2]], np.float32)
    second = np.array([[-1, -1]], np.float32)
    rows, offsets = np.concatenate([query, first, second]), np.array([0, 2, 5, 6])
    np.testing.assert_allclose(scoring.max_sim(rows, offsets), [0.9 + 0.5, -2], rtol=1e-6)


def test_term_weights_of_the_vocabulary() -> None:
    """Terms above zero, ascending."""
    row = np.array([[0, 0.5, 0, -1, 2]], np.float32)
    assert scoring.term_weights(row, None) == ([1, 4], [0.5, 2.0])


def test_term_weights_of_tokens() -> None:
    """A term that occurs twice has its largest weight."""
    rows = np.array([[0.5], [0.25], [0], [0.75]], np.float32)
    ids = np.array([7, 3, 5, 7], np.int32)
    assert scoring.term_weights(rows, ids) == ([3, 7], [0.25, 0.75])
