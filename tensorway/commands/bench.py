"""`tensorway bench`: how fast a running service answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
import orjson
from rich.table import Table

from tensorway.client import AsyncClient
from tensorway.commands.ask import AskOptions, columns, show_table
from tensorway.errors import DeadlineExceeded, ResourceExhausted, TensorwayError, Unavailable
from tensorway.flags import BadFlag, command, flag
from tensorway.options import DialOptions, Seconds

_COUNT = click.IntRange(1, 4096)
_PAUSE_SECONDS = 0.1
_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "student", "group", "country", "problem", "hand", "part"),
    *("place", "case", "week", "company", "system", "program", "question", "work", "number"),
    *("night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact"),
)


@dataclass(frozen=True)
class BenchOptions:
    """What to send."""

    model: str = flag("", help="Model to embed with; needed.")
    batch: tuple[int, ...] = flag(
        (1, 64), help="Texts of a request; several may be given.", type=_COUNT
    )
    concurrency: tuple[int, ...] = flag(
        (1, 16), help="Requests in flight at once; several may be given.", type=_COUNT
    )
    words: int = flag(20, help="Words of a text.", type=_COUNT)
    duration: float = flag(
        5.0, help="Seconds for each line of the table.", type=Seconds(min=0, min_open=True)
    )
    direct: bool = flag(False, help="Go past the router, straight to the workers.")

    def __post_init__(self) -> None:
        if not self.model:
            raise BadFlag("--model: which one? `tensorway models` lists what is served")


@dataclass
class Cell:
    """What was seen with one batch size and one concurrency."""

    batch: int
    concurrency: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Of the requests that were answered, in seconds."""
    errors: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Its numbers, by name; latencies in milliseconds."""
        answered, seconds = len(self.latencies), max(self.seconds, 1e-9)
        quantiles = np.quantile(self.latencies or [0.0], (0.5, 0.9, 0.99)) * 1000
        p50, p90, p99 = map(float, quantiles)
        return {
            "batch": self.batch,
            "concurrency": self.concurrency,
            "requests": answered,
            "requests_per_second": answered / seconds,
            "texts_per_second": answered * self.batch / seconds,
            "p50_ms": p50,
            "p90_ms": p90,
            "p99_ms": p99,
            "errors": dict(self.errors),
        }


@command("tensorway-bench", BenchOptions, AskOptions, DialOptions, terse=True)
def bench(options: BenchOptions, ask: AskOptions, dial: DialOptions) -> None:
    """Measure a running service.

    Callers send a request, wait for its answer and send the next: so many of them as
    --concurrency says, with so many texts as --batch says, one combination after the other.
    Texts are random words.

    Exit status: 0 every request was answered, 1 some failed, 2 wrong flags.
    """
    cells = asyncio.run(_measure(options, ask, dial))
    if ask.json:
        click.echo(orjson.dumps([cell.summary() for cell in cells]))
    else:
        show_table(table(cells))
    if any(cell.errors for cell in cells):
        raise SystemExit(1)


def table(cells: list[Cell]) -> Table:
    """One row a cell."""
    rows = columns(
        *(
            ">BATCH",
            ">CALLERS",
            ">REQUESTS/S",
            ">TEXTS/S",
            ">P50 MS",
            ">P90 MS",
            ">P99 MS",
            "ERRORS",
        )
    )
    for cell in cells:
        seen = cell.summary()
        rates = (f"{seen[name]:.1f}" for name in ("requests_per_second", "texts_per_second"))
        times = (f"{seen[name]:.1f}" for name in ("p50_ms", "p90_ms", "p99_ms"))
        errors = ", ".join(f"{count} {name}" for name, count in cell.errors.items()) or "none"
        rows.add_row(str(cell.batch), str(cell.concurrency), *rates, *times, errors)
    return rows


async def _measure(options: BenchOptions, ask: AskOptions, dial: DialOptions) -> list[Cell]:
    cells = [Cell(b, c) for b in options.batch for c in options.concurrency]
    try:
        async with AsyncClient(ask.router, dial=dial, direct=options.direct) as client:
            # What cannot work at all is said at once, and connecting is not measured.
            await client.embed(["hello"], model=options.model)
            for cell in cells:
                await _fill(cell, client, options)
    except TensorwayError as error:
        raise click.ClickException(f"{ask.router}: {error}") from None
    return cells


async def _fill(cell: Cell, client: AsyncClient, options: BenchOptions) -> None:
    started = time.perf_counter()
    end = started + options.duration
    callers = (_call(cell, client, options, end, caller) for caller in range(cell.concurrency))
    await asyncio.gather(*callers)
    cell.seconds = time.perf_counter() - started


async def _call(
    cell: Cell, client: AsyncClient, options: BenchOptions, end: float, caller: int
) -> None:
    texts = _texts(f"{cell.batch} {caller}", options.words)
    while time.perf_counter() < end:
        batch = [next(texts) for _ in range(cell.batch)]
        sent = time.perf_counter()
        try:
            await client.embed(batch, model=options.model)
        except (ResourceExhausted, Unavailable, DeadlineExceeded) as error:
            cell.errors[error.reason] += 1
            # A service that refuses everything is not to be flooded.
            await asyncio.sleep(error.retry_after or _PAUSE_SECONDS)
        else:
            cell.latencies.append(time.perf_counter() - sent)


def _texts(seed: str, words: int) -> Iterator[str]:
    """Random texts, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311, nothing secret
    while True:
        yield " ".join(draw.choices(_WORDS, k=words))
