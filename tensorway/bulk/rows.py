"""Rows of text files and JSON lines, one after the other, whatever is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeAlias

import orjson

Id: TypeAlias = int | str

# A line is held in memory whole, and so is a message that carries it.
MAX_LINE_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One row of an input."""

    line: int
    """Its place, from 1."""
    source: bytes
    """What it was read from."""
    position: int
    """How much of the input was read with it: bytes, or rows of a Parquet file."""
    id: Id = 0
    text: str = ""
    error: str = ""
    """Why it cannot be embedded, if it cannot."""


class Parse(Protocol):
    """Makes a row of a line without its end; ValueError says why it cannot."""

    def __call__(self, line: int, source: bytes) -> tuple[Id, str]:
        """The row's id and text."""


def read(file: BinaryIO, parse: Parse) -> Iterator[Row]:
    """The rows of a file of lines, good and bad."""
    position = 0
    for line, (source, size) in enumerate(_lines(file), 1):
        position += size
        try:
            if size > MAX_LINE_BYTES:
                raise ValueError(f"expected at most {MAX_LINE_BYTES} bytes, got {size}")  # noqa: TRY301
            row_id, text = parse(line, source)
        except ValueError as error:
            yield Row(line, source, position, error=str(error))
        else:
            yield Row(line, source, position, row_id, text)


def parse_text(line: int, source: bytes) -> tuple[Id, str]:
    """A line of text; its id is its place, from 0."""
    if line == 1:
        source = source.removeprefix(_BOM)
    try:
        return line - 1, checked(source.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None


@dataclass(frozen=True)
class ParseJson:
    """An object on a line, its text and id in named fields."""

    text_field: str
    id_field: str = ""

    def __call__(self, line: int, source: bytes) -> tuple[Id, str]:
        """The fields' values; without ``id_field`` the id is the place, from 0."""
        try:
            value = orjson.loads(source)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")  # noqa: TRY004
        text = checked(_field(value, self.text_field))
        return checked_id(_field(value, self.id_field)) if self.id_field else line - 1, text


def checked(text: Any) -> str:
    """The text; ValueError when there is none."""
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got {type(text).__name__}")  # noqa: TRY004
    if not text:
        raise ValueError("expected a text, got an empty one")
    return text


def checked_id(value: Any) -> Id:
    """The id; ValueError when it is no text or whole number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected an id, text or whole number, got {value!r}")  # noqa: TRY004
    return value


def _field(value: dict[str, Any], name: str) -> Any:
    if name not in value:
        known = ", ".join(map(repr, list(value)[:10])) or "none"
        raise ValueError(f"no field {name!r}; its fields: {known}")
    return value[name]


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Lines without their ends, and their sizes with them; of long ones, only the beginning."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        size, last = len(line), line
        while not last.endswith(b"\n") and (last := file.readline(MAX_LINE_BYTES)):
            size += len(last)
        yield line.removesuffix(b"\n").removesuffix(b"\r"), size
