"""Whether keeping finished vectors pays: ``python -m bench.repeats``.

Two embed workers on the same cores, one of which has a vector cache, are asked in turns,
request by request, by one caller. A part of all texts come from a pool that both have
seen; the others are new to both, so that a part of 0 shows what the cache costs.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from bench.clients import NAME
from bench.gpu import ALIKE, Way, cosines, free_port, grpc_path, make_texts, registered, timed
from bench.options import Numbers, minilm
from bench.processes import Launcher, Process, cpu_seconds, leave_on_sigterm
from bench.systems import CPU_ENV

POOL, CACHE_BYTES = 1024, 64 << 20
_WARM = 2


class Side(NamedTuple):
    """A worker, and how it is asked."""

    way: Way
    process: Process


class Cell(NamedTuple):
    """What came out for a batch size and a part of repeats."""

    batch: int
    repeats: float
    plain: float
    """Median of a request in ms, without a cache."""
    cached: float
    cpu: float
    """CPU seconds of the plain worker over those of the one with the cache."""

    @property
    def faster(self) -> float:
        """How many times the prompts/s without a cache."""
        return self.plain / self.cached


def requests(batch: int, repeats: float, words: int, seed: int) -> Iterator[list[str]]:
    """Requests without end, whose texts are of the pool with this probability."""
    chosen, pool = random.Random(seed), make_texts(POOL, words, 0)
    while True:
        new = make_texts(batch, words, chosen.getrandbits(60))
        yield [chosen.choice(pool) if chosen.random() < repeats else text for text in new]


def measure(plain: Side, cached: Side, asked: Iterator[list[str]], count: int) -> tuple[float, ...]:
    """Medians of both in ms, and how much more CPU the plain one took."""
    times: dict[Side, list[float]] = {plain: [], cached: []}
    cpu = dict.fromkeys(times, 0.0)
    for number in range(-_WARM, count):
        texts = next(asked)
        for side in (plain, cached) if number % 2 else (cached, plain):
            before = cpu_seconds([side.process])
            ms = timed(side.way, texts)
            if number >= 0:
                times[side].append(ms)
                cpu[side] += cpu_seconds([side.process]) - before
    return median(times[plain]), median(times[cached]), cpu[plain] / max(cpu[cached], 0.01)


def check(sides: Sequence[Side], words: int) -> None:
    """Fill the caches with the pool; raises RuntimeError unless all give the same vectors."""
    pool = make_texts(POOL, words, 0)
    for texts in (pool, pool[::-1]):
        first, second = (side.way.vectors(side.way.call(side.way.prepare(texts))) for side in sides)
        if not (worst := float(cosines(first, second).min())) > ALIKE:
            raise RuntimeError(f"the cache gives other vectors: least cosine {worst:.5f}")


def table(cells: Sequence[Cell]) -> str:
    """One line for each cell."""
    lines = ["| batch | repeats | ms | ms, cached | prompts/s | CPU |", "| ---: " * 6 + "|"]
    lines += [
        f"| {cell.batch} | {cell.repeats:.0%} | {cell.plain:.1f} | {cell.cached:.1f} "
        f"| {cell.faster:.2f} times | 1/{cell.cpu:.2f} |"
        for cell in cells
    ]
    return "\n".join(lines)


@click.command()
@click.option("--batches", type=Numbers(), default="1,15,128", show_default=True)
@click.option("--repeats", type=Numbers(), default="0,0.3,0.9", show_default=True)
@click.option("--requests", "count", default=30, show_default=True, help="Of each cell and side.")
@click.option("--words", default=18, show_default=True, help="In each text.")
@click.option("--engine", default="vllm", help="vllm, or fake to try it out.")
def main(batches: list[float], repeats: list[float], count: int, words: int, engine: str) -> None:
    """Print how much faster known texts are answered, and what new ones pay for it."""
    leave_on_sigterm()
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = Launcher(stack, logs)
        plain = _start(launcher, "plain", engine)
        cached = _start(launcher, "cached", engine, "--vector-cache-bytes", str(CACHE_BYTES))
        check([plain, cached], words)
        cells = []
        for batch, part in ((int(batch), part) for batch in batches for part in repeats):
            asked = requests(batch, part, words, seed=1 + batch)
            cells.append(Cell(batch, part, *measure(plain, cached, asked, count)))
    click.echo(table(cells))


def _start(launcher: Launcher, name: str, engine: str, *flags: str) -> Side:
    port, own = free_port(), ("--runner", "pooling", "--enforce-eager", "--dtype", "bfloat16")
    worker = ("embed_worker", minilm(), "--served-model-name", NAME, "--engine", engine)
    more = ("--port", str(port), *own, *(() if engine == "vllm" else ("--max-model-len", "256")))
    process = launcher.python(name, *worker, *more, *flags, env=CPU_ENV)
    launcher.wait_for(name, lambda: registered(port) > 0)
    return Side(grpc_path(port), process)


if __name__ == "__main__":
    main()
