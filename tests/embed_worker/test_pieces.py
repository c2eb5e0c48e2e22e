"""Large requests, tokenised in pieces while the engine works."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from embed_worker.engine import Params
from embed_worker.fake_engine import FakeEngine
from embed_worker.pieces import Pieces, cut_up, joined, pieces
from embed_worker.tokenizer import Batch, BatchTokenizer, TextOptions
from tensorway.errors import InvalidArgument, TooLarge, Unavailable
from tests.embed_worker.launch import Launcher, fails

WORDS = "x" * 60
MANY = 1800
# What the engine was asked for and has answered.
INPUTS = "embed_worker_step_inputs_sum{model=fake}"
WORKS = "embed_worker_queue_seconds_count{model=fake}"


@pytest.fixture(scope="module")
def tokenizer() -> BatchTokenizer:
    """One token for each character, 64 at most, two of them special."""
    return BatchTokenizer(FakeEngine([], 1).info)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([], [(0, 0)], id="nothing"),
        pytest.param([3, 3, 3], [(0, 3)], id="less than a piece"),
        pytest.param([5, 5, 5, 5, 5], [(0, 2), (2, 4), (4, 5)], id="a piece is ten characters"),
        pytest.param([25, 1, 1], [(0, 1), (1, 3)], id="a text is never cut"),
        pytest.param([0, 0, 10, 10], [(0, 3), (3, 4)], id="empty texts go along"),
    ],
)
def test_pieces_hold_each_text_once(lengths: list[int], expected: list[tuple[int, int]]) -> None:
    """In order, and of about the size asked for."""
    cuts = cut_up(["x" * length for length in lengths], 10)
    assert [(cut.start, cut.stop) for cut in cuts] == expected


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        pytest.param("x" * 61, True, id="at most the model's length"),
        pytest.param("x" * 62, False, id="perhaps a token more than that"),
        pytest.param("é" * 15, True, id="four tokens for a character fit"),
        pytest.param("é" * 16, False, id="four tokens for a character do not"),
    ],
)
def test_only_what_is_sure_to_be_taken(tokenizer: BatchTokenizer, text: str, sure: bool) -> None:
    """A text that may be refused keeps the whole request from being worked on before that."""
    assert (tokenizer.most_tokens(["ok", text], TextOptions()) is not None) is sure
    assert (pieces([WORDS] * MANY + [text], tokenizer, TextOptions()) is not None) is sure


@pytest.mark.parametrize("text", ["   ", "\u200b", "\x00\n"])
def test_what_may_be_no_token_at_all(tokenizer: BatchTokenizer, text: str) -> None:
    """Without special tokens such a text is refused; with them it is never empty."""
    assert tokenizer.most_tokens(["ok", text], TextOptions(special=False)) is None
    assert tokenizer.most_tokens(["ok", text], TextOptions()) is not None


def test_what_is_cut_anyway_is_never_too_long(tokenizer: BatchTokenizer) -> None:
    """With truncation a text of any length is taken, and counts for what is left of it."""
    assert tokenizer.most_tokens(["x" * 500, "x"], TextOptions(limit=10)) == [10, 4]


def test_few_texts_are_no_pieces(tokenizer: BatchTokenizer) -> None:
    """They are tokenised before the engine could begin."""
    assert pieces([WORDS] * 20, tokenizer, TextOptions()) is None


def test_most_tokens_is_no_less_than_there_are(tokenizer: BatchTokenizer) -> None:
    """It is what is held of the worker's queue while tokens are not counted yet."""
    texts = ["a", "bcd", "é ñ", "日本語"]
    for options in (TextOptions(), TextOptions(special=False), TextOptions(prefix="frage ß: ")):
        most = tokenizer.most_tokens(texts, options)
        assert most is not None
        assert (np.diff(tokenizer.encode(texts, options, str).offsets) <= most).all()


def test_batches_are_joined_in_order(tokenizer: BatchTokenizer) -> None:
    """The ids and offsets are those of all texts tokenised at once."""
    texts = ["a", "bc", "def", "g"]
    parts = [
        tokenizer.encode(own, TextOptions(), str) for own in (texts[:1], texts[1:3], texts[3:])
    ]
    for got, expected in zip(
        joined(parts), tokenizer.encode(texts, TextOptions(), str), strict=True
    ):
        assert_array_equal(got, expected)


class Engine:
    """Tells what it was asked; the second request dies, and the first waits for ever."""

    def __init__(self) -> None:
        self.asked: list[Batch] = []
        self.cancelled = False

    async def run(self, batch: Batch, params: Params, *, bulk: bool) -> Any:
        """Never give rows."""
        del params, bulk
        self.asked.append(batch)
        if len(self.asked) == 2:
            raise Unavailable("the engine died")
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


async def test_a_piece_that_fails_ends_the_others(tokenizer: BatchTokenizer) -> None:
    """The request's error is that of the piece, and nothing goes on."""
    large, engine = pieces([WORDS] * MANY, tokenizer, TextOptions()), Engine()
    assert large is not None
    first = await large.tokenize(large.cuts[0], str)
    with pytest.raises(Unavailable):
        await large.run(first, engine, Params(), str, print, bulk=False)  # type: ignore[arg-type]
    assert engine.cancelled


async def test_a_text_is_named_by_its_place_in_the_request(tokenizer: BatchTokenizer) -> None:
    """Also where a tokenizer makes more tokens of a text than anybody would think."""
    large = Pieces(["ok"] * 3 + ["x" * 63], TextOptions(), cut_up([]), tokenizer, [])
    with pytest.raises(InvalidArgument) as caught:
        await large.tokenize(slice(2, 4), "texts.texts[{}]".format)
    assert caught.value.field == "texts.texts[3]"


async def test_a_large_request_is_answered_as_its_texts_are(start: Launcher) -> None:
    """The vectors, their order and the usage are those of small requests."""
    worker = await start.start("--max-num-seqs", "256")
    await worker.embed("first")
    before = (await worker.metrics())[WORKS]
    texts = [f"{number:060d}" for number in range(MANY)]
    answer = await worker.embedding.Embed(worker.request(*texts), timeout=20)
    assert (await worker.metrics())[WORKS] - before == len(cut_up(texts)) > 1
    assert answer.usage.prompt_tokens == MANY * 62
    large = np.array([own.values for own in answer.embeddings])
    small = [await worker.embed(*texts[at : at + 100]) for at in range(0, MANY, 100)]
    assert_array_equal(large, np.concatenate(small))
    assert (await worker.itself()).load.tokens == 0


async def test_a_mistake_in_a_large_request_costs_no_engine_work(start: Launcher) -> None:
    """The last of many texts is too long: nothing before it was worked on."""
    worker = await start.start("--max-num-seqs", "256")
    await worker.embed("first")
    before = (await worker.metrics())[INPUTS]
    error = await fails(worker.embed(*[WORDS] * MANY, "x" * 63))
    assert (type(error), error.field) == (InvalidArgument, f"texts.texts[{MANY}]")
    after = (await worker.metrics())[INPUTS]
    assert after == before


async def test_a_large_request_holds_what_it_needs(start: Launcher) -> None:
    """Of the queue's tokens, once they are counted; until then, no more than there might be."""
    worker = await start.start("--max-num-seqs", "256", "--step-seconds", "0.3")
    large = asyncio.create_task(worker.embed(*[WORDS] * MANY))
    async with asyncio.timeout(10):
        while (await worker.itself()).load.tokens != MANY * 62:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await large).shape == (MANY, 8)
    assert (await worker.itself()).load.tokens == 0


async def test_a_large_request_that_just_fits(start: Launcher) -> None:
    """There is no room for what it might need, but for what it needs: it is answered."""
    limits = ("--max-queued-tokens", str(MANY * 62), "--max-num-seqs", "256")
    worker = await start.start(*limits)
    assert (await worker.embed(*[WORDS] * MANY)).shape == (MANY, 8)
    error = await fails(worker.embed(*[WORDS] * (MANY + 1)))
    assert isinstance(error, TooLarge)


async def test_texts_that_are_kept_are_computed_once_a_request(start: Launcher) -> None:
    """However large the request is."""
    worker = await start.start("--vector-cache-bytes", "1000000", "--max-num-seqs", "256")
    await worker.embed("first")
    before = (await worker.metrics())[INPUTS]
    assert (await worker.embed(*[WORDS] * MANY)).shape == (MANY, 8)
    assert (await worker.metrics())[INPUTS] - before == 1
