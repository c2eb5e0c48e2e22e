"""What `up` and `demo` show of their processes: prefixed output, who is ready, and events."""

from __future__ import annotations

import time
import zlib
from types import TracebackType
from typing import Any, Self

import click
import orjson
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

COLOURS = ("cyan", "magenta", "blue", "green", "yellow")
NAME_WIDTH = 9


class Screen:
    """The terminal. With `events`, or `stderr`, standard output is left to a program."""

    def __init__(self, *, quiet: bool, events: bool = False, stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, stderr=events or stderr)
        self.quiet = quiet
        self._events = events

    def event(self, name: str, **details: Any) -> None:
        """Tell a program, if one listens: a line of JSON."""
        if self._events:
            click.echo(orjson.dumps({"event": name, **details}))

    def line(self, name: str, line: str) -> None:
        """Show a line that a process printed, unless quiet or blank."""
        if line.strip() and not self.quiet:
            self.console.print(self.prefixed(name, line))

    def prefixed(self, name: str, line: str) -> Text:
        """The line behind its process's name, in the process's colour."""
        colour = COLOURS[zlib.crc32(name.encode()) % len(COLOURS)]
        return Text.assemble((f"{name:<{NAME_WIDTH}} │ ", colour), Text.from_ansi(line))

    def say(self, text: str) -> None:
        """Say something that a person waits for."""
        self.console.print(Text(text))

    def note(self, text: str) -> None:
        """Say something of our own."""
        self.console.print(Text(text, style="dim"))

    def starting(self, names: tuple[str, ...]) -> Starting:
        """A context manager that shows who is ready, until all are."""
        return Starting(self, names)


class Starting:
    """A line for each process: starting, or ready after so many seconds."""

    def __init__(self, screen: Screen, names: tuple[str, ...]) -> None:
        self._screen, self._console = screen, screen.console
        self._started = time.monotonic()
        self._seconds: dict[str, float | None] = dict.fromkeys(names)
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=10)

    def ready(self, name: str) -> None:
        """Note that this one is ready."""
        seconds = self._seconds[name] = time.monotonic() - self._started
        self._screen.event("ready", process=name, seconds=round(seconds, 1))
        if not self._console.is_terminal:
            self._console.print(f"  {name:<{NAME_WIDTH}} ready after {seconds:.1f} s")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        now = time.monotonic() - self._started
        for name, seconds in self._seconds.items():
            waiting = seconds is None
            mark = self._spinner if waiting else Text("✓", style="green")
            state = Text("starting" if waiting else "ready", style="dim")
            table.add_row("", mark, name, state, f"{now if waiting else seconds:5.1f} s")
        return table
