"""`tensorway demo`, as `make demo` runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tensorway.commands import demo
from tensorway.commands.screen import Screen
from tensorway.fleet import Fleet, Service

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


async def test_result_for_a_program(minilm, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the result is alone on standard output: who is alike, and where to ask."""
    grpc, rest = (Service(int(url.rpartition(":")[2])) for url in (minilm.grpc, minilm.rest))
    options, fleet = demo.DemoOptions(json=True), Fleet(router=grpc, rest=rest)
    await demo.show(fleet, Screen(quiet=True, stderr=True), options)
    found = json.loads(capsys.readouterr().out)
    assert (found["grpc"], found["rest"]) == (minilm.grpc, f"{minilm.rest}/v1")
    assert (len(found["sentences"]), found["dimensions"]) == (6, 384)
    for number, row in enumerate(found["similarities"]):
        # The sentences are pairs: 0 and 1, 2 and 3, 4 and 5.
        assert sorted(range(6), key=row.__getitem__)[-2:] == [number ^ 1, number]
