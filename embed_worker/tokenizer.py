"""Texts to token ids: a whole batch in one call, off the event loop.

Uses the Hugging Face tokenizer that vLLM itself loaded; it releases the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from embed_worker.engine import EngineInfo, Ids
from tensorway.errors import FailedPrecondition, InvalidArgument

# Below this many characters a thread hop costs more than tokenising does.
_INLINE_CHARACTERS = 4096

_NO_PAIRS = np.empty(0, np.int32)

Offsets = NDArray[np.int64]
# Path in the request of the input with that index.
Field = Callable[[int], str]


class Batch(NamedTuple):
    """The inputs of a request: input i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: Offsets
    seconds: Ids
    """For pairs of texts, where each second text starts; else empty."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """Tokens of all inputs."""
        return len(self.ids)


class TextOptions(NamedTuple):
    """How text becomes token ids."""

    special: bool = True
    """Whether the tokenizer's special tokens are added."""
    limit: int | None = None
    """Cut to this many tokens, special tokens included; None: too long is an error."""
    prefix: str = ""
    """Put before each text."""


class BatchTokenizer:
    """The model's tokenizer and its limits."""

    def __init__(self, info: EngineInfo) -> None:
        self._max_model_len = info.max_model_len
        self._lowercase = info.lowercase
        self._cuts_left = info.truncation_side == "left"
        self._tokenizer = Tokenizer.from_str(info.tokenizer) if info.tokenizer else None
        self._start: list[int] = []
        self._end: list[int] = []
        if self._tokenizer is not None:
            # The file may carry settings of its training; ours are per request.
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self._start, self._end = _special_tokens(self._tokenizer)
        self._check_probes(info.probe_ids)

    @property
    def special_tokens(self) -> int:
        """How many special tokens a text gets."""
        return len(self._start) + len(self._end)

    async def texts(self, texts: Sequence[str], options: TextOptions, field: Field) -> Batch:
        """Token ids of texts; raises InvalidArgument naming the text that is too long."""
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return self.encode(texts, options, field)
        return await asyncio.to_thread(self.encode, texts, options, field)

    def most_tokens(self, texts: Sequence[str], options: TextOptions) -> list[int] | None:
        """Most tokens that each text can have; None if one of them might be refused.

        A token has at least one character or, where there is none for a character, one of its
        bytes. (A few characters that Unicode's normal forms spell out can be more.)
        """
        limit = options.limit or self._max_model_len
        own = self.special_tokens + 1 + _most_tokens(options.prefix)
        most = [own + _most_tokens(text) for text in texts]
        if options.limit is None and max(most) > limit:
            return None
        if not (options.special and self.special_tokens) and not all(map(_has_letter, texts)):
            return None
        return [min(tokens, limit) for tokens in most]

    def encode(self, texts: Sequence[str], options: TextOptions, field: Field) -> Batch:
        """The same, on the calling thread."""
        prepared = [self._prepare(options.prefix + text) for text in texts]
        encodings = self._loaded().encode_batch_fast(prepared, add_special_tokens=options.special)
        return self.sequences([encoding.ids for encoding in encodings], options, field)

    def sequences(
        self, sequences: Sequence[Sequence[int]], options: TextOptions, field: Field
    ) -> Batch:
        """Token ids as they are, checked against the model's length or cut."""
        limit = options.limit or self._max_model_len
        lengths = [len(ids) for ids in sequences]
        if not min(lengths):
            raise _no_tokens(field(lengths.index(0)))
        if max(lengths) > limit:
            if options.limit is None:
                index = next(i for i, length in enumerate(lengths) if length > limit)
                raise _too_long(field(index), limit, lengths[index])
            sequences = [self._cut(list(ids), limit, options) for ids in sequences]
            lengths = [len(ids) for ids in sequences]
        flat = np.fromiter(chain.from_iterable(sequences), np.int32, count=sum(lengths))
        return Batch(flat, np.cumsum([0, *lengths], dtype=np.int64), _NO_PAIRS)

    async def pairs(
        self, query: str, texts: Sequence[str], limit: int | None, field: Field
    ) -> Batch:
        """Token ids of (query, text) pairs, as a cross-encoder reads them."""
        return await asyncio.to_thread(self._encode_pairs, query, texts, limit, field)

    def _encode_pairs(
        self, query: str, texts: Sequence[str], limit: int | None, field: Field
    ) -> Batch:
        pairs = [(self._prepare(query), self._prepare(text)) for text in texts]
        encodings = self._loaded().encode_batch(pairs)
        if limit is not None:
            for index, encoding in enumerate(encodings):
                if len(encoding.ids) > limit:
                    encodings[index] = self._cut_pair(*pairs[index], limit)
        batch = self.sequences([e.ids for e in encodings], TextOptions(), field)
        starts = [e.type_ids.index(1) if 1 in e.type_ids else len(e.ids) for e in encodings]
        return batch._replace(seconds=np.array(starts, np.int32))

    def _cut_pair(self, query: str, text: str, limit: int) -> Encoding:
        """A pair cut to the limit, its longer text first, as the tokenizers library does it.

        Its own truncation is a setting of the whole tokenizer, not of a call.
        """
        tokenizer = self._loaded()
        first = tokenizer.encode(query, add_special_tokens=False)
        second = tokenizer.encode(text, add_special_tokens=False)
        room = limit - tokenizer.num_special_tokens_to_add(is_pair=True)
        shorter = min(len(first), len(second), room // 2)
        side = "left" if self._cuts_left else "right"
        sizes = (
            (shorter, room - shorter) if len(first) <= len(second) else (room - shorter, shorter)
        )
        first.truncate(sizes[0], direction=side)
        second.truncate(sizes[1], direction=side)
        return tokenizer.post_process(first, second)

    def _cut(self, ids: list[int], limit: int, options: TextOptions) -> list[int]:
        """Cut to the limit, but keep the special tokens at the end that is cut.

        Ids of the caller that carry the special tokens of a text are treated as that text,
        so that a text and its own ids are cut to the same tokens.
        """
        if len(ids) <= limit:
            return ids
        kept = self._start if self._cuts_left else self._end
        carried = ids[: len(kept)] if self._cuts_left else ids[len(ids) - len(kept) :]
        if not options.special or carried != kept or len(kept) >= limit:
            kept = []
        room = limit - len(kept)
        return kept + ids[-room:] if self._cuts_left else ids[:room] + kept

    def _prepare(self, text: str) -> str:
        return text.lower() if self._lowercase else text

    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            raise FailedPrecondition("the model was loaded without a tokenizer: send token ids")
        return self._tokenizer

    def _check_probes(self, probes: dict[str, list[int]]) -> None:
        for text, expected in probes.items():
            got = self.encode([text], TextOptions(), str).ids.tolist()
            if got != expected:
                raise RuntimeError(f"tokenizer: {text!r} gave {got}, vLLM's gives {expected}")


def _most_tokens(text: str) -> int:
    return len(text) * (1 if text.isascii() else 4)


def _has_letter(text: str) -> bool:
    """Whether there is something that no normalisation takes away."""
    return any(map(str.isalnum, text))


def _special_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after every text."""
    encoding = tokenizer.encode("a")
    own = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]


def _no_tokens(field: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: expected at least one token, got none", field=field)


def _too_long(field: str, limit: int, got: int) -> InvalidArgument:
    return InvalidArgument(
        f"{field}: expected at most {limit} tokens, got {got}; "
        "set truncate_prompt_tokens to -1 to cut",
        field=field,
    )
