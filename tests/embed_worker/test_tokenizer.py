"""Texts to ids with a real tokenizer, against the tokenizers library's own settings."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from embed_worker.engine import EngineInfo
from embed_worker.tokenizer import Batch, BatchTokenizer, TextOptions
from tests.embed_worker import vllm

JSON = (vllm.minilm() / "tokenizer.json").read_text()
LIBRARY = Tokenizer.from_str(JSON)
LIBRARY.no_padding()
TEXT = st.text("ab cde,.Ü東 ", min_size=1, max_size=60)


def batch_tokenizer(**fields: Any) -> BatchTokenizer:
    """A tokenizer with MiniLM's vocabulary."""
    known: dict[str, Any] = {
        "model_names": ["m"], "root": "m", "dtype": "float32", "dimensions": 8, "tasks": ["embed"],
        "vocab_size": 30522, "max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 512,
    }  # fmt: skip
    return BatchTokenizer(EngineInfo(**known | fields, tokenizer=JSON))


@cache
def cutting(side: str) -> BatchTokenizer:
    """A tokenizer that cuts on that side."""
    return batch_tokenizer(truncation_side=side)


def reference(limit: int | None, side: str = "right") -> Tokenizer:
    """The library's own tokenizer, set to cut to a limit until the next call."""
    LIBRARY.no_truncation()
    if limit is not None:
        LIBRARY.enable_truncation(limit, strategy="longest_first", direction=side)
    return LIBRARY


def lists(batch: Batch) -> list[list[int]]:
    """Ids of each input."""
    bounds = zip(batch.offsets, batch.offsets[1:], strict=False)
    return [batch.ids[start:stop].tolist() for start, stop in bounds]


@pytest.mark.parametrize("side", ["right", "left"])
@settings(deadline=None, max_examples=30)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), limit=st.integers(3, 64))
def test_texts_are_cut_as_the_library_cuts_them(side: str, texts: list[str], limit: int) -> None:
    """From either side, down to one token of text; and so are their own ids."""
    tokenizer = cutting(side)
    expected = [reference(limit, side).encode(text).ids for text in texts]
    got = tokenizer.encode(texts, TextOptions(limit=limit), str)
    assert lists(got) == expected
    own = [reference(None).encode(text).ids for text in texts]
    assert lists(tokenizer.sequences(own, TextOptions(limit=limit), str)) == expected


@pytest.mark.parametrize("side", ["right", "left"])
@settings(deadline=None, max_examples=30)
@given(query=TEXT, texts=st.lists(TEXT, min_size=1, max_size=4), limit=st.integers(5, 64))
def test_pairs_are_cut_as_the_library_cuts_them(
    side: str, query: str, texts: list[str], limit: int
) -> None:
    """The longer of both first; and each second text starts where the library says."""
    tokenizer = cutting(side)
    expected = [reference(limit, side).encode(query, text) for text in texts]
    got = tokenizer._encode_pairs(query, texts, limit, str)
    assert lists(got) == [encoding.ids for encoding in expected]
    for start, encoding in zip(got.seconds.tolist(), expected, strict=True):
        ids = encoding.type_ids
        assert ids == [0] * start + [1] * (len(ids) - start)


def test_a_tokenizer_that_disagrees_with_vllm_s_stops_the_worker() -> None:
    """Ids that vLLM's own tokenizer gives must come out of ours too."""
    batch_tokenizer(probe_ids={"hi": [101, 7632, 102]})
    with pytest.raises(RuntimeError, match=r"'hi' gave \[101, 7632, 102\], vLLM's gives \[7632\]"):
        batch_tokenizer(probe_ids={"hi": [7632]})


def test_lower_casing_of_the_model_s_config() -> None:
    """Texts and prompts are lower-cased when the model's config says so."""
    probe = "ÜBER Größe"
    plain = batch_tokenizer().encode([probe.lower()], TextOptions(), str)
    lower = batch_tokenizer(lowercase=True).encode([probe], TextOptions(), str)
    assert lists(plain) == lists(lower)
