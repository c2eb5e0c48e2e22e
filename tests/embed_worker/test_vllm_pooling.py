"""Cross-encoder, classifier, SPLADE and CLS pooling on a real engine; and how engines end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tensorway.errors import FailedPrecondition, Unavailable
from tensorway.v1 import model_pb2, pooling_pb2
from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker, fails, rows

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

QUERY = "where do cats sleep"
DOCUMENTS = ["on the sofa", "stocks fell today", "cats sleep anywhere they like", "word " * 50]
TEXTS = ["hello world", "a", "one two three"]


async def test_cross_encoder(
    start: Launcher, small_models: Path, reference: vllm.Reference
) -> None:
    """Scores and ranking are transformers' on the pairs, whole and cut."""
    folder = small_models / "scorer"
    worker = await vllm.start(start, folder)
    assert list((await worker.itself()).model.tasks) == [model_pb2.TASK_SCORE]
    pairs = [[QUERY, document] for document in DOCUMENTS]
    whole = await reference("scores", folder, pairs)
    cut = await reference("cut_scores", folder, pairs, 16)
    fields = {"model": "small", "query": QUERY, "documents": DOCUMENTS}
    answer = await worker.pooling.Score(pooling_pb2.ScoreRequest(**fields))
    np.testing.assert_allclose(answer.scores, whole, atol=1e-4)
    short = pooling_pb2.ScoreRequest(**fields, truncate_prompt_tokens=16)
    np.testing.assert_allclose((await worker.pooling.Score(short)).scores, cut, atol=1e-4)
    best = pooling_pb2.RerankRequest(**fields, top_n=2, return_documents=True)
    results = (await worker.pooling.Rerank(best)).results
    order = np.argsort(-np.array(whole), kind="stable")[:2].tolist()
    assert [result.index for result in results] == order
    assert [result.document for result in results] == [DOCUMENTS[i] for i in order]
    error = await fails(worker.embedding.Embed(worker.request("a")))
    assert type(error) is FailedPrecondition


async def test_classifier(start: Launcher, small_models: Path, reference: vllm.Reference) -> None:
    """Probabilities of all classes, and the name of the likeliest."""
    folder = small_models / "classifier"
    worker = await vllm.start(start, folder)
    assert list((await worker.itself()).model.tasks) == [model_pb2.TASK_CLASSIFY]
    expected = await reference("classes", folder, [[text] for text in TEXTS])
    request = pooling_pb2.ClassifyRequest(model="small", texts={"texts": TEXTS})
    answer = await worker.pooling.Classify(request)
    got = [list(item.probs) for item in answer.classifications]
    np.testing.assert_allclose(got, expected, atol=1e-4)
    labels = ["bad", "fair", "good"]
    assert list(answer.labels) == labels
    likeliest = [labels[i] for i in np.argmax(expected, 1)]
    assert [item.label for item in answer.classifications] == likeliest


async def test_splade(start: Launcher, small_models: Path, reference: vllm.Reference) -> None:
    """Weights of terms, for the same terms as transformers."""
    folder = small_models / "splade"
    override = '{"architectures": ["BertSpladeSparseEmbeddingModel"]}'
    worker = await vllm.start(start, folder, "--hf-overrides", override)
    assert list((await worker.itself()).model.tasks) == [model_pb2.TASK_SPARSE_EMBED]
    ids = await reference("tokens", folder, TEXTS)
    expected = await reference("sparse", folder, ids)
    request = pooling_pb2.SparseEmbedRequest(model="small", texts={"texts": TEXTS})
    answer = await worker.pooling.SparseEmbed(request)
    for embedding, weights in zip(answer.embeddings, expected, strict=True):
        got = np.zeros(30522)
        got[list(embedding.indices)] = embedding.values
        wanted = np.zeros(30522)
        wanted[[int(term) for term in weights]] = list(weights.values())
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        assert list(embedding.indices) == sorted(set(embedding.indices))


async def dies(worker: Worker, number: int) -> None:
    """In flight fails with UNAVAILABLE within 10 s, and the exit status is not 0."""
    calls = [worker.embedding.Embed(worker.request(*["word " * 60] * 1000)) for _ in range(8)]
    errors = [asyncio.ensure_future(fails(call)) for call in calls]
    await worker.holds(8)
    started = time.monotonic()
    os.kill(worker.engine(), number)
    assert {type(error) for error in await asyncio.gather(*errors)} == {Unavailable}
    assert time.monotonic() - started < 10
    assert await worker.ended() == 1


async def test_modules_of_the_folder_and_kill(
    start: Launcher, small_models: Path, reference: vllm.Reference
) -> None:
    """Pooling, projection and lower-casing are the folder's, the width a flag's; then a kill.

    The folder has no module that normalises, so vectors have the length that they have.
    """
    folder, width = small_models / "cls", 16
    matryoshka = ("--hf-overrides", '{"is_matryoshka": true}')
    flags = (*matryoshka, "--pooler-config", f'{{"dimensions": {width}}}')
    worker = await vllm.start(start, folder, *flags)
    assert "no sentence-transformers pooling config" not in worker.output
    assert (await worker.itself()).model.dimensions == width
    ids = await reference("tokens", folder, TEXTS)
    expected = np.array(await reference("projected", folder, ids))
    np.testing.assert_allclose(await worker.embed(*TEXTS), expected[:, :width], atol=1e-4)
    cut = await worker.embed(*TEXTS, dimensions=5)
    np.testing.assert_allclose(cut, expected[:, :5], atol=1e-4)
    np.testing.assert_allclose(await worker.embed("HELLO"), await worker.embed("hello"), atol=1e-5)
    await dies(worker, signal.SIGKILL)
    assert not start.left_over()


async def test_no_pooling_config_and_a_hung_engine(start: Launcher, small_models: Path) -> None:
    """A folder that says nothing of pooling is warned of, not guessed at silently."""
    worker = await vllm.start(start, small_models / "plain")
    assert "no sentence-transformers pooling config" in worker.output
    answer = await worker.embedding.Embed(worker.request("a"))
    np.testing.assert_allclose(np.linalg.norm(rows(answer)), 1, atol=1e-3)
    await dies(worker, signal.SIGSTOP)
    assert "finished nothing for" in worker.output
