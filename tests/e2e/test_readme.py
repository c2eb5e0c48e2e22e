"""The README's first calls, run as they are written but for the ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHOWN = {
    "grpcurl": '"dimensions": 384',
    "curl": '"embedding":[-0.03',
    "tensorway models": "minilm",
}


def run(minilm, *command: str) -> str:
    """What the command prints, with .venv/bin first on the path."""
    grpc, rest = minilm.grpc.rpartition(":")[2], minilm.rest.rpartition(":")[2]
    here = [part.replace("localhost:50051", f"localhost:{grpc}") for part in command]
    here = [part.replace("localhost:8000", f"localhost:{rest}") for part in here]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        here,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", SHOWN)
def test_commands(minilm, name: str) -> None:
    """Each shell command of the README works, and shows what it should."""
    (command,) = [text for text in COMMANDS if text.startswith(f"{name} ")]
    assert SHOWN[name] in run(minilm, "bash", "-euc", command)


def test_every_command_is_tested() -> None:
    """No shell command of the README is left out above."""
    assert len(COMMANDS) == len(SHOWN)


@pytest.mark.parametrize("program", PROGRAMS, ids=["grpc", "openai"])
def test_python(minilm, program: str) -> None:
    """Both Python programs print two vectors of 384 numbers."""
    shown = run(minilm, sys.executable, "-W", "error", "-c", program)
    assert shown.startswith("2 384 [-0.034")


def test_links_lead_somewhere() -> None:
    """Every link into the repository names a file or folder that is there."""
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
