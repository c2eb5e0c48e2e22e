"""A real sentence model on a real engine: every form of input, against plain transformers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tensorway.errors import InvalidArgument
from tensorway.v1 import pooling_pb2
from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker, fails, rows

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

WIDTH = 384
TEXTS = [
    "hi",
    "hello world",
    "The quick brown fox jumps over the lazy dog.",
    "Über den Wolken, 東京 🙂",
    "UPPER and lower",
    "word " * 100,
    "a b c d e f g h",
    "one two three four",
]
STEPS = "embed_worker_step_inputs_count{model=small}"


@pytest.fixture(scope="module")
async def worker(launcher: Launcher) -> Worker:
    """MiniLM on vLLM."""
    return await vllm.start(launcher, vllm.minilm())


@pytest.fixture(scope="module")
async def limit(worker: Worker) -> int:
    """Longest input in tokens."""
    return (await worker.itself()).model.max_model_len


@pytest.fixture(scope="module")
async def expected(reference: vllm.Reference) -> Any:
    """Ids, mean-pooled vectors and token vectors of the texts."""
    ids = await reference("tokens", vllm.minilm(), TEXTS)
    vectors = await reference("pooled", vllm.minilm(), ids, "mean")
    return ids, vectors, await reference("token_vectors", vllm.minilm(), ids)


async def test_texts_and_their_ids(worker: Worker, expected: Any) -> None:
    """A batch of mixed lengths, as text and as ids: the same vectors, of length 1."""
    ids, vectors, _ = expected
    by_text = await worker.embedding.Embed(worker.request(*TEXTS))
    by_ids = await worker.embedding.Embed(worker.ids(*ids))
    assert vllm.cosines(rows(by_text), vectors).min() > 0.9999
    assert vllm.cosines(rows(by_ids), rows(by_text)).min() > 0.9999
    np.testing.assert_allclose(np.linalg.norm(rows(by_text), axis=1), 1, atol=1e-3)
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens == sum(map(len, ids))


async def test_alone_together_and_under_load(worker: Worker, expected: Any) -> None:
    """Company changes nothing: alone, in equal lengths, and beside other requests."""
    _, vectors, _ = expected
    alone = [await worker.embed(text) for text in TEXTS]
    assert vllm.cosines(np.concatenate(alone), vectors).min() > 0.9999
    for text, vector in zip(TEXTS, vectors, strict=True):
        equal = await worker.embed(*[text] * 9)
        assert vllm.cosines(equal, [vector] * 9).min() > 0.9999
    loads = [worker.embed(*TEXTS[i % 8 :], timeout=60) for i in range(64)]
    for i, got in enumerate(await asyncio.gather(*loads)):
        assert vllm.cosines(got, vectors[i % 8 :]).min() > 0.9999


async def test_ids_without_special_tokens(
    worker: Worker, expected: Any, reference: vllm.Reference
) -> None:
    """Ids are used as given: without special tokens the vector is another one."""
    ids = [own[1:-1] for own in expected[0]]
    bare = await reference("pooled", vllm.minilm(), ids, "mean")
    by_ids = rows(await worker.embedding.Embed(worker.ids(*ids)))
    by_text = await worker.embed(*TEXTS, add_special_tokens=False)
    assert vllm.cosines(by_ids, bare).min() > 0.9999
    assert vllm.cosines(by_text, bare).min() > 0.9999
    assert vllm.cosines(bare, expected[1]).min() < 0.999


async def test_lengths_around_the_limit(worker: Worker, limit: int) -> None:
    """One less and exactly the limit are answered, one more is refused, all in time."""
    for length in (limit - 1, limit):
        request = worker.ids([101, *[2000] * (length - 2), 102])
        assert rows(await worker.embedding.Embed(request, timeout=10)).shape == (1, WIDTH)
    error = await fails(worker.embedding.Embed(worker.ids([2000] * (limit + 1)), timeout=10))
    assert (type(error), error.field) == (InvalidArgument, "tokens.sequences[0]")


@pytest.mark.parametrize("given", [-1, 16])
async def test_truncation(
    worker: Worker, limit: int, given: int, reference: vllm.Reference
) -> None:
    """A short text beside one that is cut: the final special token stays."""
    size = limit if given == -1 else given
    request = worker.request("hi", "word " * 600, truncate_prompt_tokens=given)
    answer = await worker.embedding.Embed(request, timeout=10)
    kept = [[101, 7632, 102], [101, *[2773] * (size - 2), 102]]
    assert answer.usage.prompt_tokens == 3 + size
    vectors = await reference("pooled", vllm.minilm(), kept, "mean")
    assert vllm.cosines(rows(answer), vectors).min() > 0.9999


async def test_only_the_native_width(worker: Worker) -> None:
    """A model without Matryoshka has one width, which clients may send anyway."""
    assert (await worker.embed("a", dimensions=WIDTH)).shape == (1, WIDTH)
    for dimensions in (1, WIDTH - 1, WIDTH + 1):
        error = await fails(worker.embedding.Embed(worker.request("a", dimensions=dimensions)))
        assert (type(error), error.field) == (InvalidArgument, "dimensions")


async def test_a_text_without_tokens(worker: Worker) -> None:
    """Spaces alone are no token, which the engine would refuse as our mistake."""
    assert (await worker.embed("  ")).shape == (1, WIDTH)
    request = worker.request("a", "  ", add_special_tokens=False)
    error = await fails(worker.embedding.Embed(request))
    assert str(error) == "texts.texts[1]: expected at least one token, got none"


async def test_token_vectors(worker: Worker, expected: Any) -> None:
    """One vector for each token, as transformers gives them."""
    request = pooling_pb2.TokenEmbedRequest(model="small", texts={"texts": TEXTS})
    answer = await worker.pooling.TokenEmbed(request)
    for embedding, vectors in zip(answer.embeddings, expected[2], strict=True):
        got = np.array(embedding.values).reshape(embedding.tokens, answer.dimensions)
        assert vllm.cosines(got, vectors).min() > 0.9999


async def test_scores_are_cosines(worker: Worker, expected: Any) -> None:
    """An embedding model scores by the cosine of its vectors."""
    query, *documents = TEXTS
    request = pooling_pb2.ScoreRequest(model="small", query=query, documents=documents)
    vectors = np.array(expected[1])
    scores = (await worker.pooling.Score(request)).scores
    np.testing.assert_allclose(scores, vectors[1:] @ vectors[0], atol=1e-3)


async def test_cancelling_empties_the_engine(worker: Worker) -> None:
    """Cancelled after 50 ms in the engine, which makes no step any more after a second."""
    call = worker.embedding.Embed(worker.request(*["word " * 50] * 2000))
    running = asyncio.ensure_future(call)
    while not (await worker.itself()).load.tokens:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not running.done()
    call.cancel()
    await asyncio.wait({running})
    await asyncio.sleep(1)
    assert (await worker.itself()).load.requests == 0
    before = (await worker.metrics())[STEPS]
    await asyncio.sleep(0.5)
    assert (await worker.metrics())[STEPS] == before
    assert (await worker.embed("after", timeout=10)).shape == (1, WIDTH)


async def test_vllm_s_own_metrics(worker: Worker) -> None:
    """They stand beside the worker's."""
    names = (await worker.metrics()).keys()
    assert any(name.startswith("vllm:") for name in names)
    assert STEPS in names
