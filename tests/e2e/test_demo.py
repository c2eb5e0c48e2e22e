"""`tensorway demo`, as `make demo` runs it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm


def test_demo_shows_what_is_alike() -> None:
    """The demo ends with status 0 and a table in which the three pairs stand out."""
    command = ("-m", "tensorway.cli", "demo", "--port", "0", "--rest-port", "0")
    ran = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=110, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    rows = re.findall(r"^ \d  .*[.?] ((?: +-?[\d.]+){6})", ran.stdout, re.MULTILINE)
    cosines = [[float(value) for value in row.split()] for row in rows]
    assert len(cosines) == 6
    for row, column in ((r, c) for r in range(6) for c in range(6) if r != c):
        paired = row // 2 == column // 2
        assert (cosines[row][column] > 0.4) == paired, (row, column)
    assert "6 sentences, 384 numbers each, the same over gRPC and REST." in ran.stdout
