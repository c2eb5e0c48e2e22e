"""How far a run is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from tensorway.bulk.rows import Row


class Progress:
    """The bar; a context manager. Time left is told from the input's size, where it is known."""

    def __init__(self, size: int | None, position: int, console: Console) -> None:
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.BarColumn(bar_width=None),
            progress.TextColumn("{task.percentage:.0f} %" if size else ""),
            progress.TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f}/s"),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            expand=True,
        )
        # What an earlier run did is no measure of this one's speed.
        self._task = self._bar.add_task("", total=size, completed=position, rows=0, rate=0.0)
        self._started = time.monotonic()
        self.rows = 0
        """Rows done with in this run."""

    def __enter__(self) -> Self:
        """Show it."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take it away."""
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """How long this run has taken."""
        return time.monotonic() - self._started

    def done(self, rows: Sequence[Row]) -> None:
        """Some more rows are done with."""
        self.rows += len(rows)
        rate = self.rows / max(self.seconds, 1e-9)
        for last in rows[-1:]:
            self._bar.update(self._task, completed=last.position, rows=self.rows, rate=rate)
