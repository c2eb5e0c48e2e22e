"""What a run has done so far, on disk, so that the next one goes on from there.

A folder beside the output holds the vectors, the ids and the bad rows of the input's first
rows, each in a file that only grows, and ``state.json``, which says how much of them counts.
The state is replaced in one step, and only once what it speaks of is on the disk: whenever
a run ends, and however, the folder describes a prefix of the input, no row twice, none left out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import numpy as np
import orjson
from blake3 import blake3

from tensorway._client_requests import Vectors
from tensorway.bulk.rows import Id, Row
from tensorway.flags import BadFlag

# An .npy file begins with so many bytes that describe the rest; they are written last.
HEADER_BYTES = 128
_INT64 = 2**63
_FILES = {"vectors": HEADER_BYTES, "ids": 0, "bad": 0}


class State(msgspec.Struct):
    """How far a run has come."""

    settings: dict[str, Any]
    """What makes its vectors what they are."""
    rows: int = 0
    """Rows of the input that are done with."""
    written: int = 0
    """Rows that have a vector."""
    width: int = 0
    dtype: str = "<f4"
    whole_ids: bool = True
    """Whether all ids are whole numbers of 64 bits."""
    digest: str = ""
    """Of the rows that are done with."""
    sizes: dict[str, int] = msgspec.field(default_factory=lambda: dict(_FILES))
    output: str = ""
    """The file here that becomes the output, once it is whole."""


class Journal:
    """The folder; opened by :func:`opened`."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self.state = state
        self._files: dict[str, IO[bytes]] = {}
        self._digest = blake3()
        self.position = 0
        """How much of the input is done with."""

    def __enter__(self) -> Self:
        """Open the files, less what was written after the last checkpoint."""
        for name, size in self.state.sizes.items():
            file = (self.folder / name).open("ab")
            self._files[name] = file
            file.truncate(size)
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    @property
    def skipped(self) -> int:
        """Rows that could not be embedded."""
        return self.state.rows - self.state.written

    def left(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that are not done with; BadFlag when those that are have changed."""
        following = iter(rows)
        done = 0
        while done < self.state.rows and (row := next(following, None)):
            self._digest.update(row.source)
            self.position = row.position
            done += 1
        if done < self.state.rows or (done and self._digest.hexdigest() != self.state.digest):
            raise BadFlag(
                f"the input's first {self.state.rows} rows are not those that {self.folder} has; "
                "--restart discards it"
            )
        return following

    def append(self, rows: Iterable[Row], vectors: Vectors) -> None:
        """Take the next rows: vectors [good rows, width] for the good ones, reasons for others."""
        ids, bad = bytearray(), bytearray()
        for row in rows:
            self._digest.update(row.source)
            self.state.rows += 1
            if row.error:
                bad += _bad(row)
            else:
                ids += orjson.dumps(row.id) + b"\n"
                self.state.whole_ids &= _is_whole(row.id)
        self._files["ids"].write(ids)
        self._files["bad"].write(bad)
        self._files["vectors"].write(np.ascontiguousarray(vectors).data)
        if len(vectors):
            self.state.written += len(vectors)
            self.state.width, self.state.dtype = vectors.shape[1], vectors.dtype.str

    def checkpoint(self) -> None:
        """Make everything so far count."""
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            self.state.sizes[name] = os.fstat(file.fileno()).st_size
        self.state.digest = self._digest.hexdigest()
        write_whole(self.folder / "state.json", msgspec.json.encode(self.state))

    def chunks(self, rows: int) -> Iterator[tuple[list[Id], Vectors]]:
        """What there is, ids and vectors [rows, width], so many rows at once."""
        width, dtype = self.state.width, np.dtype(self.state.dtype)
        with (self.folder / "ids").open("rb") as ids, (self.folder / "vectors").open("rb") as file:
            file.seek(HEADER_BYTES)
            for start in range(0, self.state.written, rows):
                count = min(rows, self.state.written - start)
                vectors = np.fromfile(file, dtype, count * width).reshape(count, width)
                yield [orjson.loads(next(ids)) for _ in range(count)], vectors


@contextmanager
def opened(folder: Path, settings: dict[str, Any]) -> Iterator[Journal]:
    """The journal in a folder, begun now or before; only one process may have it.

    BadFlag when it was begun with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context((folder / "lock").open("wb"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadFlag(f"{folder}: another run is writing there") from None
        yield stack.enter_context(Journal(folder, _load(folder, settings)))


def is_finished(folder: Path) -> bool:
    """Whether what a folder held has become the output already."""
    state = _read(folder)
    return state is not None and state.output != "" and not (folder / state.output).exists()


def discard(folder: Path) -> None:
    """Forget what a folder holds."""
    shutil.rmtree(folder, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step, once its new content is on the disk."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _load(folder: Path, settings: dict[str, Any]) -> State:
    state = _read(folder)
    # Where nothing was done, as with a misspelt model, there is nothing to agree with.
    if state is None or not state.rows:
        return State(settings)
    for name, value in settings.items():
        if state.settings.get(name) != value:
            was = state.settings.get(name)
            raise BadFlag(
                f"{folder} was begun with {name} {was!r}, not {value!r}; --restart discards it"
            )
    return state


def _read(folder: Path) -> State | None:
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BadFlag(f"{folder}/state.json: {error}; --restart discards it") from None


def _bad(row: Row) -> bytes:
    source = row.source.decode(errors="replace")
    return orjson.dumps({"line": row.line, "error": row.error, "row": source}) + b"\n"


def _is_whole(value: Id) -> bool:
    return isinstance(value, int) and -_INT64 <= value < _INT64
