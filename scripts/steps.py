"""Runs named steps, and shows each with the time it takes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


class StepError(Exception):
    """A step that failed; ``str()`` is the end of what it printed."""


def step(name: str, command: Sequence[str | Path], *, live: bool = False) -> None:
    """Run a command in the project's folder, with one line on the screen.

    What it prints is shown only when it fails, unless ``live``.
    """
    started = time.monotonic()
    _show(name, "..." if live else "", end="\n" if live else "")
    with tempfile.TemporaryFile("w+") as output:
        sink = None if live else output
        process = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=sink)
        while (status := _wait(process)) is None:
            if sys.stdout.isatty() and not live:
                _show(name, f"{time.monotonic() - started:6.0f} s", start="\r")
        seconds = f"{time.monotonic() - started:6.1f} s"
        _show(name, seconds if status == 0 else f"{seconds}  failed", start="\r", end="\n")
        output.seek(0)
        if status:
            raise StepError(output.read().strip())


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _show(name: str, text: str, *, start: str = "", end: str = "") -> None:
    # Where no terminal takes a line back, the name is shown once and the time follows it.
    if sys.stdout.isatty() or not start:
        print(f"{start}  {name:<34}", end="")
    print(text, end=end, flush=True)
