"""Rows, and what is kept of a run, whenever it ends."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tensorway.bulk import formats, journal
from tensorway.bulk.progress import Progress
from tensorway.bulk.rows import MAX_LINE_BYTES, ParseJson, Row, parse_text, read
from tensorway.bulk.run import batched

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": 1}', "expected a text, got int"),
        (b'{"words": "a"}', "no field 'text'; its fields: 'words'"),
        (b'["a"]', "expected an object, got list"),
        (b'{"text"', "not JSON: "),
        (b"", "not JSON: "),
        (b'{"text": "\xff"}', "not JSON: "),
        (b'{"text": "a", "id": 1.5}', "expected an id, text or whole number, got 1.5"),
        (b'{"text": "a"}', "no field 'id'; its fields: 'text'"),
        (b"x" * (17 * MIB), f"expected at most {16 * MIB} bytes, got {17 * MIB + 1}"),
    ],
)
def test_bad_lines_of_json(line: bytes, why: str) -> None:
    """What is wrong with a line is said, and the next one is read."""
    file = io.BytesIO(line + b'\n{"text": "next", "id": 7}\n')
    bad, good = read(file, ParseJson("text", "id"))
    assert bad.error.startswith(why)
    assert len(bad.source) <= MAX_LINE_BYTES + 1
    assert (good.line, good.id, good.text, good.error) == (2, 7, "next", "")
    assert good.position == len(file.getvalue())


def test_lines_of_text() -> None:
    """Line ends and the byte order mark are no part of a text; what is not UTF-8 is told."""
    rows = list(read(io.BytesIO(b"\xef\xbb\xbfone\r\n two \n\n\xff\nlast"), parse_text))
    assert [row.text for row in rows] == ["one", " two ", "", "", "last"]
    assert [row.error for row in rows if row.error] == [
        "expected a text, got an empty one",
        "not UTF-8: invalid start byte at byte 0",
    ]


def test_batches_have_two_limits() -> None:
    """So many rows, or about a mebibyte of them."""
    rows = [Row(line, b"x" * (MIB // 4), 0) for line in range(10)]
    assert [len(batch) for batch in batched(iter(rows), 3)] == [3, 3, 3, 1]
    assert [len(batch) for batch in batched(iter(rows), 100)] == [4, 4, 2]


STEPS = st.lists(st.sampled_from(["append", "checkpoint", "crash"]), max_size=30)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, bad=st.sets(st.integers(0, 59)))
def test_whatever_happens_no_row_is_lost_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], bad: set[int]
) -> None:
    """A run that crashes anywhere, any number of times, ends as one that does not."""
    folder = tmp_path_factory.mktemp("run") / "partial"
    output = folder.with_name("out.npy")
    rows = [Row(n + 1, b"%d" % n, n, n, "text", "bad" * (n in bad)) for n in range(60)]
    turns = iter([*steps, "end"])
    while next_turn(folder, rows, turns) != "end":
        pass
    with journal.opened(folder, {"id field": "id"}) as work:
        append(work, list(work.left(rows)))
        formats.finish(work, "npy", output, output.with_name("bad"))
    good = [n for n in range(60) if n not in bad]
    assert np.load(output).reshape(-1).tolist() == good
    ids = output.with_suffix(".ids.jsonl").read_text().split()
    assert ids == [str(n) for n in good]
    assert output.with_name("bad").read_bytes().count(b"\n") == len(bad)
    assert not folder.exists()


def next_turn(folder: Path, rows: list[Row], turns) -> str:
    """Go on with the run until it crashes, or there are no more steps."""
    with journal.opened(folder, {"id field": "id"}) as work:
        left = work.left(rows)
        for step in turns:
            if step == "checkpoint":
                work.checkpoint()
            elif step == "append":
                append(work, list(islice(left, 5)))
            else:
                return step
    raise AssertionError


def append(work: journal.Journal, rows: list[Row]) -> None:
    """Rows whose vectors are their numbers."""
    vectors = np.array([[row.id] for row in rows if not row.error], "<f4").reshape(-1, 1)
    work.append(rows, vectors)


def test_progress_on_a_terminal() -> None:
    """Rows, rate and the time that is left; elsewhere nothing."""
    shown = {}
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with Progress(1000, 500, console) as progress:
            progress.done([Row(1, b"", 600), Row(2, b"", 750)])
        shown[terminal] = console.file.getvalue()
    assert "75 %" in shown[True]
    assert "2 rows, " in shown[True]
    assert "/s" in shown[True]
    assert shown[False] == ""
