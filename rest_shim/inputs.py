"""The four forms of ``input``: a text, texts, one list of token ids, lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorway.errors import InvalidArgument

Input = str | list[str | int | list[int]]

_MAX_ID = 2**32 - 1
_NAMES = {str: "a text", int: "a token id", list: "a list of token ids"}


def to_texts_or_ids(given: Input) -> tuple[list[str], list[list[int]]]:
    """The texts, or the lists of token ids; the other one is empty.

    Raises InvalidArgument when the list mixes forms, or an id cannot be one (the
    model's own range is for the worker to check).
    """
    if isinstance(given, str):
        return [given], []
    if given and isinstance(given[0], str):
        return _only(str, given), []
    if given and isinstance(given[0], int):
        ids = _only(int, given)
        _check_ids("input", ids)
        return [], [ids]
    sequences: list[list[int]] = _only(list, given)
    for index, ids in enumerate(sequences):
        _check_ids(f"input[{index}]", ids)
    return [], sequences


def _only(kind: type, items: list[str | int | list[int]]) -> list[Any]:
    if set(map(type, items)) - {kind}:
        index, odd = next((i, v) for i, v in enumerate(items) if type(v) is not kind)
        field = f"input[{index}]"
        raise InvalidArgument(
            f"{field}: expected {_NAMES[kind]} like the inputs before, got {_NAMES[type(odd)]}",
            field=field,
        )
    return items


def _check_ids(field: str, ids: Sequence[int]) -> None:
    if ids and not (min(ids) >= 0 and max(ids) <= _MAX_ID):
        index, odd = next((i, v) for i, v in enumerate(ids) if not 0 <= v <= _MAX_ID)
        field = f"{field}[{index}]"
        raise InvalidArgument(f"{field}: expected a token id >= 0, got {odd}", field=field)
