"""Cutting long inputs: only when asked, and without losing the special tokens."""

from __future__ import annotations

import numpy as np
import pytest

from embed_worker.fake_engine import vector
from tests.embed_worker.launch import Launcher, Worker, rows

CLS, SEP, LIMIT = 1, 2, 64
LETTERS = [ord("a") + i % 26 for i in range(114)]
TEXT = "".join(map(chr, LETTERS))


def kept(limit: int) -> list[int]:
    """The ids that remain of TEXT, as the reference tokenizer cuts it."""
    return [CLS, *LETTERS[: limit - 2], SEP]


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        pytest.param(-1, LIMIT, id="model limit"),
        pytest.param(LIMIT, LIMIT, id="same by value"),
        pytest.param(LIMIT - 1, LIMIT - 1, id="one less"),
        pytest.param(16, 16, id="16"),
        pytest.param(3, 3, id="one token of text"),
    ],
)
async def test_text_and_its_ids_are_cut_alike(worker: Worker, given: int, limit: int) -> None:
    """The final special token stays, for text and for the ids of that text."""
    by_text = worker.request(TEXT, truncate_prompt_tokens=given)
    by_ids = worker.ids([CLS, *LETTERS, SEP], truncate_prompt_tokens=given)
    for request in (by_text, by_ids):
        answer = await worker.embedding.Embed(request)
        np.testing.assert_array_equal(rows(answer)[0], vector(kept(limit), 8))
        assert answer.usage.prompt_tokens == limit


async def test_only_long_inputs_are_cut(worker: Worker) -> None:
    """Inputs at the limit or below stay; usage counts what was kept."""
    texts = ("short", "x" * 14, "y" * 15)
    answer = await worker.embedding.Embed(worker.request(*texts, truncate_prompt_tokens=16))
    whole = await worker.embed("short", "x" * 14, "y" * 14)
    np.testing.assert_array_equal(rows(answer), whole)
    assert answer.usage.prompt_tokens == 7 + 16 + 16


async def test_ids_without_special_tokens_are_just_cut(worker: Worker) -> None:
    """Ids that do not end with the special token get none added."""
    answer = await worker.embedding.Embed(worker.ids(LETTERS, truncate_prompt_tokens=10))
    np.testing.assert_array_equal(rows(answer)[0], vector(LETTERS[:10], 8))


async def test_text_without_special_tokens_is_just_cut(worker: Worker) -> None:
    """Without special tokens the whole limit is text, down to one token."""
    for limit in (1, 10):
        request = worker.request(TEXT, truncate_prompt_tokens=limit, add_special_tokens=False)
        (got,) = rows(await worker.embedding.Embed(request))
        np.testing.assert_array_equal(got, vector(LETTERS[:limit], 8))


async def test_a_prompt_counts(worker: Worker) -> None:
    """A named prompt is part of the text that is cut."""
    request = worker.request(TEXT, truncate_prompt_tokens=16, prompt_name="query")
    answer = await worker.embedding.Embed(request)
    own = [CLS, *map(ord, "query: "), *LETTERS[:7], SEP]
    np.testing.assert_array_equal(rows(answer)[0], vector(own, 8))
    assert answer.usage.prompt_tokens == 16


async def test_exactly_the_limit_needs_no_cut(worker: Worker) -> None:
    """One token less than the limit and the limit itself are answered whole."""
    for size in (LIMIT - 1, LIMIT):
        answer = await worker.embedding.Embed(worker.request(TEXT[: size - 2]))
        np.testing.assert_array_equal(rows(answer)[0], vector(kept(size), 8))


async def test_a_tokenizer_that_cuts_left(start: Launcher) -> None:
    """The end of the text stays, and the special token before it."""
    worker = await start.start("--truncation-side", "left")
    expected = vector([CLS, *LETTERS[-8:], SEP], 8)
    by_text = worker.request(TEXT, truncate_prompt_tokens=10)
    by_ids = worker.ids([CLS, *LETTERS, SEP], truncate_prompt_tokens=10)
    for request in (by_text, by_ids):
        (got,) = rows(await worker.embedding.Embed(request))
        np.testing.assert_array_equal(got, expected)
    bare = worker.request(TEXT, truncate_prompt_tokens=10, add_special_tokens=False)
    (got,) = rows(await worker.embedding.Embed(bare))
    np.testing.assert_array_equal(got, vector(LETTERS[-10:], 8))
