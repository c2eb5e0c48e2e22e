"""The `tensorway` command itself, and what it shows of processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tensorway import __version__
from tensorway.cli import COMMANDS
from tensorway.commands.screen import Screen


def tensorway(*args: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "tensorway.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def terminal() -> Console:
    """A terminal that can be read back."""
    return Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)


def printed(console: Console) -> str:
    """What was written to the terminal."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_help_and_version() -> None:
    """Help lists every command with a sentence that is not cut off."""
    shown = tensorway("--help")
    for name in COMMANDS:
        (line,) = [text for text in shown.splitlines() if text.startswith(f"  {name} ")]
        assert line.endswith(".")
        assert not line.endswith("...")
    assert tensorway("--version") == f"tensorway {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """A shell gets a script that asks us."""
    assert f"_TENSORWAY_COMPLETE={shell}_complete" in tensorway("completion", shell)


@pytest.mark.parametrize(
    ("typed", "known"), [("tensorway em", "embed"), ("tensorway embed --in", "--in-flight")]
)
def test_completion(typed: str, known: str) -> None:
    """Commands and flags are completed."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    ran = subprocess.run(
        [Path(sys.executable).parent / "tensorway"],
        env={**os.environ, **words, "_TENSORWAY_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"plain,{known}" in ran.stdout.splitlines()


def test_help_imports_no_engine() -> None:
    """Looking at the help of every command loads neither torch nor vllm."""
    code = """
import sys
from tensorway.cli import COMMANDS, main
for name in COMMANDS:
    assert main.get_command(None, name).help
print({"torch", "vllm"} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_lines_carry_their_process() -> None:
    """A line stands behind its process's name; markup and colours in it change nothing."""
    screen = Screen(quiet=False)
    screen.console = terminal()
    screen.line("router", "INFO [bold]as it is[/bold] \x1b[31mred\x1b[0m")
    screen.line("router", "  ")
    text = printed(screen.console)
    assert "router    │ " in text
    assert "[bold]as it is[/bold]" in text
    assert "\x1b[31mred" in text
    assert text.count("\n") == 1


def test_quiet_screen_shows_no_lines() -> None:
    """The demo does not show what its processes print."""
    screen = Screen(quiet=True)
    screen.console = terminal()
    screen.line("router", "INFO listening")
    assert printed(screen.console) == ""


def test_progress_on_a_terminal() -> None:
    """Each process has a line that turns from starting to ready."""
    screen = Screen(quiet=False)
    screen.console = terminal()
    with screen.starting(("router", "worker-1")) as starting:
        starting.ready("router")
    last = printed(screen.console).rpartition("✓")[2]
    assert "router" in last
    assert "ready" in last
    assert "starting" in last.partition("worker-1")[2]


def test_progress_in_a_file() -> None:
    """Without a terminal, each process is told once, when it is ready."""
    screen = Screen(quiet=False)
    screen.console = Console(file=io.StringIO(), highlight=False)
    with screen.starting(("router",)) as starting:
        starting.ready("router")
    assert printed(screen.console).startswith("  router    ready after 0.")
    assert printed(screen.console).count("\n") == 1
