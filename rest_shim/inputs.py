"""The four forms of ``input``: a text, texts, one list of token ids, lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from tensorway.errors import InvalidArgument
from tensorway.v1 import embedding_pb2

from .token_ids import ToText

Input = str | list[str | int | list[int]]

_MAX_ID = 2**32 - 1
_NAMES = {str: "a text", int: "a token id", list: "a list of token ids"}


class Fields(TypedDict):
    """The input of a gRPC request, of which one field is set."""

    texts: embedding_pb2.TextInput | None
    tokens: embedding_pb2.TokenInput | None


def to_fields(given: Input, to_text: ToText | None) -> Fields:
    """The input as gRPC has it; with `to_text` token ids go on as texts.

    Raises InvalidArgument when the list mixes forms, or an id cannot be one (the
    model's own range is for the worker to check).
    """
    if isinstance(given, str):
        return _texts([given])
    # Nothing at all is for the worker to refuse.
    if not given or isinstance(given[0], str):
        return _texts(_only(str, given))
    if isinstance(given[0], int):
        lists = [("input", _only(int, given))]
    else:
        lists = [(f"input[{index}]", ids) for index, ids in enumerate(_only(list, given))]
    return _tokens(lists) if to_text is None else _texts([to_text(*named) for named in lists])


def _texts(texts: list[str]) -> Fields:
    return {"texts": embedding_pb2.TextInput(texts=texts), "tokens": None}


def _tokens(lists: Sequence[tuple[str, list[int]]]) -> Fields:
    sequences = [embedding_pb2.TokenSequence(ids=_checked(*named)) for named in lists]
    return {"texts": None, "tokens": embedding_pb2.TokenInput(sequences=sequences)}


def _only(kind: type, items: list[str | int | list[int]]) -> list[Any]:
    if set(map(type, items)) - {kind}:
        index, odd = next((i, v) for i, v in enumerate(items) if type(v) is not kind)
        field = f"input[{index}]"
        raise InvalidArgument(
            f"{field}: expected {_NAMES[kind]} like the inputs before, got {_NAMES[type(odd)]}",
            field=field,
        )
    return items


def _checked(field: str, ids: list[int]) -> list[int]:
    if ids and not (min(ids) >= 0 and max(ids) <= _MAX_ID):
        index, odd = next((i, v) for i, v in enumerate(ids) if not 0 <= v <= _MAX_ID)
        field = f"{field}[{index}]"
        expected = f"expected a token id of 0 to {_MAX_ID}"
        raise InvalidArgument(f"{field}: {expected}, got {odd}", field=field)
    return ids
