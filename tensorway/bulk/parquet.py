"""Rows of Parquet files, and Parquet files of vectors; pyarrow is imported when it is used."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from tensorway._client_requests import Vectors
from tensorway.bulk.rows import Id, Row, checked, checked_id
from tensorway.flags import BadFlag

# Rows that are decoded at once.
_ROWS = 1024


def seekable(file: BinaryIO) -> BinaryIO:
    """The same content where it can be read from any place: a pipe is kept on disk."""
    if file.seekable():
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115, the caller closes it
    shutil.copyfileobj(file, copy)
    return copy


def count(file: BinaryIO) -> int:
    """Rows of a file."""
    return int(_opened(file).metadata.num_rows)


def read(file: BinaryIO, text_field: str, id_field: str) -> Iterator[Row]:
    """The rows of a file, good and bad; BadFlag for columns that are not there."""
    opened = _opened(file)
    _check_columns(opened.schema_arrow, text_field, id_field)
    columns = [text_field, *([id_field] if id_field else [])]
    line = 0
    for batch in opened.iter_batches(_ROWS, columns=columns):
        values = [batch.column(name).to_pylist() for name in columns]
        for text, *ids in zip(*values, strict=True):
            yield _row(line, text, ids[0] if ids else line)
            line += 1


def write(path: Path, chunks: Iterable[tuple[list[Id], Vectors]], *, whole_ids: bool) -> None:
    """A file with the columns ``id`` and ``embedding``, a row group for each chunk."""
    pa, pq = _arrow()
    kind = pa.int64() if whole_ids else pa.string()

    def table(ids: list[Id], vectors: Vectors) -> Any:
        named = ids if whole_ids else [str(value) for value in ids]
        flat, width = pa.array(vectors.reshape(-1)), vectors.shape[1]
        embedding = pa.FixedSizeListArray.from_arrays(flat, width)
        return pa.table({"id": pa.array(named, kind), "embedding": embedding})

    tables = (table(*chunk) for chunk in chunks)
    first = next(tables, None)
    if first is None:
        empty = {"id": pa.array([], kind), "embedding": pa.array([], pa.list_(pa.float32()))}
        first = pa.table(empty)
    with pq.ParquetWriter(path, first.schema) as writer:
        for part in chain([first], tables):
            writer.write_table(part)


def _row(line: int, text: Any, row_id: Any) -> Row:
    # A row of which nothing can be told still differs from others.
    source = repr((text, row_id)).encode(errors="backslashreplace")
    place = line + 1
    try:
        return Row(place, source, place, checked_id(row_id), checked(text))
    except ValueError as error:
        return Row(place, source, place, error=str(error))


def _check_columns(schema: Any, text_field: str, id_field: str) -> None:
    for flag, name in (("--text-field", text_field), ("--id-field", id_field)):
        if name and name not in schema.names:
            raise BadFlag(f"{flag}: no column {name!r}; columns: {', '.join(schema.names)}")


def _opened(file: BinaryIO) -> Any:
    pa, pq = _arrow()
    try:
        return pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise BadFlag(f"the input is no Parquet file: {error}") from None


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadFlag("Parquet needs pyarrow: pip install 'tensorway[parquet]'") from error
    return pa, pq
