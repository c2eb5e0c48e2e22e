"""Inputs by name and format, and how much there is of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from tensorway.bulk import parquet, rows
from tensorway.bulk.rows import Row
from tensorway.flags import BadFlag

InputFormat = Literal["text", "jsonl", "parquet"]

STDIN = Path("-")
_BY_SUFFIX: dict[str, InputFormat] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Source:
    """An open input."""

    rows: Iterator[Row]
    size: int | None
    """The position of its last row; None when that is not known."""


def guess(path: Path) -> InputFormat:
    """The format that a file's name says; standard input is text."""
    if path == STDIN:
        return "text"
    if path.suffix not in _BY_SUFFIX:
        raise BadFlag(
            f"{path}: what is in it? Its name does not say; "
            "give --input-format text, jsonl or parquet"
        )
    return _BY_SUFFIX[path.suffix]


@contextmanager
def opened(path: Path, format: InputFormat, text_field: str, id_field: str) -> Iterator[Source]:
    """The rows of a file, or of standard input."""
    if path == STDIN:
        yield _source(sys.stdin.buffer, None, format, text_field, id_field)
        return
    with path.open("rb") as file:
        yield _source(file, path.stat().st_size, format, text_field, id_field)


def _source(
    file: BinaryIO, size: int | None, format: InputFormat, text_field: str, id_field: str
) -> Source:
    match format:
        case "text":
            return Source(rows.read(file, rows.parse_text), size)
        case "jsonl":
            return Source(rows.read(file, rows.ParseJson(text_field, id_field)), size)
        case "parquet":
            file = parquet.seekable(file)
            return Source(parquet.read(file, text_field, id_field), parquet.count(file))
