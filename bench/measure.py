"""The run: every cell on every subject in turns, checked, timed and charged."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from bench.clients import Vectors
from bench.jobs import Driver, Generator, Job, Outcome
from bench.processes import Process, cpu_seconds, peak_mib, reset_peak
from bench.reference import Reference
from bench.systems import Subject

# bfloat16 against float32; what is wrong is far below.
ALIKE = 0.999


class Cell(msgspec.Struct, frozen=True):
    """A kind of load."""

    batch: int
    callers: int
    rate: float = 0.0
    words: int = 0
    """In each text; 0: as many as the run has."""


class Turn(msgspec.Struct):
    """One subject's turn at one cell."""

    latencies: list[float]
    seconds: float
    failures: int
    cpu: float
    peak: float
    cosine: float


class WrongVectors(RuntimeError):
    """A subject gave other vectors than the reference."""


class Bench:
    """Generators, and what checks the answers."""

    def __init__(
        self,
        generators: Sequence[Generator],
        reference: Reference | None,
        *,
        words: int,
        seconds: float,
    ) -> None:
        """Without a reference, answers are not checked."""
        self._generators, self._reference = generators, reference
        self._words, self._seconds = words, seconds

    def rounds(
        self, subjects: Sequence[Subject], cells: Sequence[Cell], rounds: int
    ) -> Iterator[tuple[str, Cell, Turn]]:
        """Each subject has one turn at each cell in each round, first as often as the others."""
        for number in range(rounds):
            for at, cell in enumerate(cells):
                first = (number + at) % len(subjects)
                for subject in (*subjects[first:], *subjects[:first]):
                    if subject.target.kind != "engine" or not cell.rate:
                        yield subject.name, cell, self.turn(subject, cell, number)

    def turn(self, subject: Subject, cell: Cell, seed: int) -> Turn:
        """Check the subject, then load it."""
        words = cell.words or self._words
        job = Job(subject.target, cell.batch, 1, self._seconds, words=words, seed=seed)
        cosine = self._check(subject, job)
        reset_peak(subject.charged)
        before = cpu_seconds(subject.charged)
        outcomes = self._load(subject, job, cell)
        return _turn(outcomes, subject.charged, before, cosine)

    def _check(self, subject: Subject, job: Job) -> float:
        if self._reference is None:
            return math.nan
        generator: Driver = subject.driver or self._generators[0]
        generator.give(msgspec.structs.replace(job, look=True))
        outcome = generator.outcome()
        given: Vectors = np.frombuffer(outcome.vectors, np.float32).reshape(-1, outcome.width)
        cosine = self._reference.least_cosine(given, job.batch, job.words, job.seed)
        if not cosine > ALIKE:
            raise WrongVectors(f"{subject.name}, batch {job.batch}: least cosine {cosine:.5f}")
        return cosine

    def _load(self, subject: Subject, job: Job, cell: Cell) -> list[Outcome]:
        ours: Sequence[Driver] = self._generators[: cell.callers]
        used = [subject.driver] if subject.driver else ours
        for index, generator in enumerate(used):
            callers = len(range(index, cell.callers, len(used)))
            rate, seed = cell.rate / len(used), 1000 * (job.seed + 1) + 100 * index
            # Generators take turns, or requests would come in twos.
            delay = index / cell.rate if cell.rate else 0.0
            generator.give(
                msgspec.structs.replace(job, callers=callers, rate=rate, delay=delay, seed=seed)
            )
        return [generator.outcome() for generator in used]


def idle_cpu(subjects: Sequence[Subject], seconds: float = 3.0) -> dict[str, float]:
    """CPU seconds a second that each takes when nobody asks."""
    before = {subject.name: cpu_seconds(subject.charged) for subject in subjects}
    time.sleep(seconds)
    return {s.name: (cpu_seconds(s.charged) - before[s.name]) / seconds for s in subjects}


def _turn(
    outcomes: Sequence[Outcome], charged: Sequence[Process], before: float, cosine: float
) -> Turn:
    latencies = [one for outcome in outcomes for one in outcome.latencies]
    began, ended = min(o.began for o in outcomes), max(o.ended for o in outcomes)
    turn = Turn(
        latencies=latencies,
        seconds=ended - began,
        failures=sum(outcome.failures for outcome in outcomes),
        cpu=cpu_seconds(charged) - before,
        peak=peak_mib(charged),
        cosine=cosine,
    )
    late = max(outcome.late for outcome in outcomes)
    told = f", sent at most {late:.1f} ms late" if late else ""
    print(f"  {len(latencies)} requests in {turn.seconds:.1f} s{told}", file=sys.stderr)
    return turn
