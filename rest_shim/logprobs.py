"""Log probabilities of a generated answer, in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorway.v1 import generator_pb2

Piece = Callable[[int], bytes]
"""The bytes that a token stands for."""
Places = Sequence[generator_pb2.TokenLogprobs]

# JSON has no infinity; vLLM's word for what is as good as impossible.
_LEAST = -9999.0


class ChatLogprobs:
    """As chats have them: `top` of the likeliest tokens beside each one that was chosen."""

    def __init__(self, piece: Piece, top: int) -> None:
        self._piece = piece
        self._top = top

    def __call__(self, places: Places) -> dict[str, Any]:
        """Those of the next tokens."""
        return {"content": [self._place(place) for place in places], "refusal": None}

    def _place(self, place: generator_pb2.TokenLogprobs) -> dict[str, Any]:
        chosen, *_ = place.candidates
        likeliest = sorted(place.candidates, key=lambda one: one.rank)[: self._top]
        return {**self._token(chosen), "top_logprobs": [self._token(one) for one in likeliest]}

    def _token(self, one: generator_pb2.TokenLogprob) -> dict[str, Any]:
        data = self._piece(one.token_id)
        return {"token": _text(data), "logprob": _logprob(one), "bytes": list(data)}


class TextLogprobs:
    """As completions have them: lists, and where each token begins in the answer."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._offset = 0

    def __call__(self, places: Places) -> dict[str, Any]:
        """Those of the next tokens."""
        tops = [self._place(place) for place in places]
        tokens = [next(iter(top)) for top in tops]
        return {
            "tokens": tokens,
            "token_logprobs": [top[token] for top, token in zip(tops, tokens, strict=True)],
            "top_logprobs": tops,
            "text_offset": [self._move(token) for token in tokens],
        }

    def _place(self, place: generator_pb2.TokenLogprobs) -> dict[str, float]:
        """Tokens by text, the chosen one first; of two with one text the likelier."""
        found: dict[str, float] = {}
        for one in place.candidates:
            found.setdefault(_text(self._piece(one.token_id)), _logprob(one))
        return found

    def _move(self, token: str) -> int:
        self._offset += len(token)
        return self._offset - len(token)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _logprob(one: generator_pb2.TokenLogprob) -> float:
    return max(one.logprob, _LEAST)
