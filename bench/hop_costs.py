"""Processor time of a call: the client's, the worker's, and that of what is between them."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import psutil


class Cost(NamedTuple):
    """Milliseconds of processor time of each process."""

    client: float
    worker: float
    hop: float


def spent(worker: psutil.Process, hop: psutil.Process | None) -> Cost:
    """What each has taken until now; the client is this process."""
    times = (_seconds(psutil.Process()), _tree(worker), _tree(hop) if hop else 0.0)
    return Cost(*(seconds * 1000 for seconds in times))


def per_call(before: Cost, after: Cost, calls: int) -> Cost:
    """What each of so many calls took."""
    return Cost(*((b - a) / calls for a, b in zip(before, after, strict=True)))


def shown(costs: list[Cost]) -> str:
    """What a call costs each process, and all of them: medians."""
    client, worker, hop = map(statistics.median, zip(*costs, strict=True))
    return f"{client:>9.3f}{worker:>9.3f}{hop:>9.3f}{client + worker + hop:>9.3f}"


def _tree(one: psutil.Process) -> float:
    return sum(map(_seconds, (one, *one.children(recursive=True))))


def _seconds(one: psutil.Process) -> float:
    times = one.cpu_times()
    return float(times.user + times.system)
