"""Proof from outside of which workers did the work of a burst (R4).

Each worker's requests counter is read before and after a burst. Every expected worker must
have moved, every other one must not, and together they must have moved far enough. Deltas
are compared, not totals: a total hides a leak of an earlier burst. Workers are named by
their index in the list, since ports change.

    python -m tests.dispatch_check --worker 127.0.0.1:9001 --worker 127.0.0.1:9002 \
        --expect 0 --minimum 10 -- COMMAND THAT SENDS THE BURST
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import click
from prometheus_client.parser import text_string_to_metric_families

METRIC = "embed_worker_requests_total"

Read = Callable[[str], str]


class DispatchError(AssertionError):
    """The burst did not go where it should; one line for each worker at fault."""


def fetch(address: str) -> str:
    """The metrics that a worker shows at ``host:port``."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def total(text: str, metric: str = METRIC) -> float:
    """Sum of a counter over all its labels; 0 when there is none yet."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric
    )


def check(
    before: Sequence[float], after: Sequence[float], expected: Collection[int], minimum: float
) -> list[float]:
    """The deltas by index; raises DispatchError unless they are as expected."""
    if unknown := sorted(set(expected) - set(range(len(before)))):
        raise DispatchError(f"expected workers {unknown}: there are only {len(before)}")
    deltas = [late - early for early, late in zip(before, after, strict=True)]
    faults = [fault for index in range(len(deltas)) if (fault := _fault(index, deltas, expected))]
    done = sum(deltas[index] for index in expected)
    if done < minimum:
        faults.append(f"expected workers did {done:g} requests, at least {minimum:g} were sent")
    if faults:
        raise DispatchError("; ".join(faults))
    return deltas


def _fault(index: int, deltas: Sequence[float], expected: Collection[int]) -> str:
    delta = deltas[index]
    if delta < 0:
        return f"worker {index}: counter went back by {-delta:g}; was it restarted?"
    if index in expected and not delta:
        return f"worker {index}: expected, but did nothing"
    if index not in expected and delta:
        return f"worker {index}: not expected, but did {delta:g} requests"
    return ""


@contextmanager
def burst(
    workers: Sequence[str], expected: Collection[int], minimum: float, read: Read = fetch
) -> Iterator[None]:
    """Check the burst that is sent inside."""
    before = [total(read(address)) for address in workers]
    yield
    check(before, [total(read(address)) for address in workers], expected, minimum)


@click.command()
@click.option("--worker", "workers", multiple=True, required=True, help="Metrics host:port.")
@click.option("--expect", "expected", multiple=True, type=int, help="Index of a worker to move.")
@click.option("--minimum", default=1.0, show_default=True, help="Requests that were sent.")
@click.argument("command", nargs=-1, required=True)
def main(workers: list[str], expected: list[int], minimum: float, command: list[str]) -> None:
    """Run COMMAND and check which workers did its work."""
    try:
        with burst(workers, expected, minimum):
            subprocess.run(command, check=True)
    except DispatchError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
