"""From a journal to the file that was asked for."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from tensorway._client_requests import Vectors
from tensorway.bulk import parquet
from tensorway.bulk.journal import HEADER_BYTES, Journal, discard
from tensorway.bulk.rows import Id

Format = Literal["jsonl", "npy", "parquet"]

# Of one chunk, which is held in memory, and is a row group of Parquet.
_CHUNK_BYTES = 64 * 1024 * 1024


def finish(journal: Journal, format: Format, output: Path, bad: Path | None) -> list[Path]:
    """Make the output of a whole journal, and discard it; returns what there is now.

    The output appears in one step, last of all. Run again after an interruption, it does
    the same again.
    """
    made = _WRITERS[format](journal)
    beside = {}
    if format == "npy" and (journal.state.settings["id field"] or journal.skipped):
        beside[output.with_suffix(".ids.jsonl")] = "ids"
    if bad is not None:
        beside[bad] = "bad"
    journal.state.output = made.name
    journal.checkpoint()
    for path, name in beside.items():
        shutil.copyfile(journal.folder / name, path)
    made.replace(output)
    discard(journal.folder)
    return [output, *beside]


def to_jsonl(chunks: Iterable[tuple[list[Id], Vectors]]) -> Iterator[bytes]:
    """A line for each row: ``{"id": ..., "embedding": [...]}``."""
    for ids, vectors in chunks:
        for row_id, vector in zip(ids, vectors, strict=True):
            row = {"id": row_id, "embedding": vector}
            yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _npy(journal: Journal) -> Path:
    state, path = journal.state, journal.folder / "vectors"
    shape = (state.written, state.width)
    header = io.BytesIO()
    described = {"descr": state.dtype, "fortran_order": False, "shape": shape}
    write_header: Any = np.lib.format.write_array_header_1_0
    write_header(header, described)
    assert len(header.getvalue()) == HEADER_BYTES
    with path.open("r+b") as file:
        file.write(header.getvalue())
    return path


def _jsonl(journal: Journal) -> Path:
    path = journal.folder / "output"
    with path.open("wb") as file:
        file.writelines(to_jsonl(journal.chunks(_chunk_rows(journal))))
    return path


def _parquet(journal: Journal) -> Path:
    path = journal.folder / "output"
    chunks = journal.chunks(_chunk_rows(journal))
    parquet.write(path, chunks, whole_ids=journal.state.whole_ids)
    return path


def _chunk_rows(journal: Journal) -> int:
    row = journal.state.width * np.dtype(journal.state.dtype).itemsize
    return max(1, _CHUNK_BYTES // max(1, row))


_WRITERS: dict[Format, Callable[[Journal], Path]] = {
    "jsonl": _jsonl,
    "npy": _npy,
    "parquet": _parquet,
}
