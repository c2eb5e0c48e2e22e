"""Where a request's time goes: ``python -m bench.spans``, from the client to the engine.

REST shim, router and embed worker run with tracing on, one client asks them in a closed
loop, and each request's spans are cut into stages that follow each other. What a stage
takes is its own time: what its span lasts less the spans inside it, so the way between two
processes belongs to the one that asks. Tracing itself costs something (the table says how
much the answers of the same stack without a trace take).
"""

from __future__ import annotations

import http.client
import json
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import click

from bench import systems
from bench.clients import NAME
from bench.collector import Collector, Span, collecting
from bench.gpu import CALL_SECONDS, make_texts
from bench.options import Numbers, minilm
from bench.processes import Launcher, leave_on_sigterm
from bench.stages import ALL, RESIDUE, Profile, Request, profile, table
from bench.systems import Plan

_WARM, _EXPORT_SECONDS = 3, 20.0


def measure(
    plan: Plan, batches: Sequence[int], count: int, words: int, logs: Path
) -> list[Profile]:
    """Start the stack with tracing on, and ask it `count` times for each batch size."""
    with ExitStack() as stack:
        collector, address = stack.enter_context(collecting())
        launcher = Launcher(stack, logs)
        traced = replace(plan, observe=("--otlp-endpoint", address))
        subjects = systems.start(["tensorway"], launcher, stack, traced)
        (rest,) = (subject for subject in subjects if subject.name == "rest")
        client = stack.enter_context(closing(Client(rest.target.address)))
        return [_measure(client, collector, batch, count, words) for batch in batches]


def _measure(client: Client, collector: Collector, batch: int, count: int, words: int) -> Profile:
    # Each request is sent with a trace and without, in turns.
    asked = [
        (client.ask(texts, traced=True), client.ask(texts, traced=False).ms)
        for texts in (make_texts(batch, words, 1000 * batch + n) for n in range(_WARM + count))
    ][_WARM:]
    requests = [request for request, _ in asked]
    spans = exported(collector, {request.trace for request in requests})
    return profile(batch, requests, spans, median(ms for _, ms in asked))


def exported(collector: Collector, traces: set[str]) -> list[Span]:
    """The spans of traces, once all have come."""
    deadline = time.monotonic() + _EXPORT_SECONDS
    while True:
        spans = [span for span in collector.spans() if span.trace in traces]
        if len(spans) >= len(traces) * len(ALL) or time.monotonic() > deadline:
            return spans
        time.sleep(0.1)


class Client:
    """Asks the shim, on one connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=CALL_SECONDS)
        self._connection.connect()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, texts: Sequence[str], *, traced: bool) -> Request:
        """One request, timed; a trace that is not to be recorded says so."""
        trace = secrets.token_hex(16)
        headers = {
            "Content-Type": "application/json",
            "traceparent": f"00-{trace}-{secrets.token_hex(8)}-0{traced:d}",
        }
        body = json.dumps({"model": NAME, "input": list(texts), "encoding_format": "base64"})
        began = time.time_ns()
        self._connection.request("POST", "/v1/embeddings", body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        ended = time.time_ns()
        if response.status != http.client.OK:
            raise RuntimeError(f"HTTP {response.status}: {answer[:500]!r}")
        return Request(trace, began, ended)


@click.command()
@click.option("--batches", type=Numbers(), default="1,15,128,1024", show_default=True)
@click.option("--requests", "count", default=30, show_default=True, help="Of each batch size.")
@click.option("--words", default=18, show_default=True, help="In each text.")
@click.option("--model", default="", help="Folder of the model; all-MiniLM-L6-v2 if not given.")
@click.option("--flags", default="--dtype bfloat16 --enforce-eager", show_default=True,
              help="Of vLLM.")  # fmt: skip
@click.option("--ours", multiple=True, help="One more flag of our worker; repeat for more.")
def main(
    batches: list[float], count: int, words: int, model: str, flags: str, ours: tuple[str, ...]
) -> None:
    """Print where a request's time goes; fails when the stages do not add up to it."""
    leave_on_sigterm()
    plan = Plan(model or minilm(), tuple(shlex.split(flags)), ours)
    with tempfile.TemporaryDirectory() as logs:
        found = measure(plan, [int(batch) for batch in batches], count, words, Path(logs))
    click.echo(table(found))
    if over := [one for one in found if one.residue > RESIDUE]:
        sys.exit(f"batch {over[0].batch}: the stages miss the median by {over[0].residue:.1%}")


if __name__ == "__main__":
    main()
