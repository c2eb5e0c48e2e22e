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
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from bench import systems
from bench.clients import NAME
from bench.collector import Collector, Span, collecting
from bench.gpu import CALL_SECONDS, make_texts
from bench.options import Numbers, minilm
from bench.processes import Launcher, leave_on_sigterm
from bench.systems import Plan

REST, ROUTER, WORKER = "tensorway-rest", "tensorway-router", "tensorway-embed-worker"
EMBED, MODEL = "tensorway.v1.EmbeddingService/Embed", f"embeddings {NAME}"
STEP_SECONDS = "tensorway.step_seconds"
# Spans of one request, each inside the one before it where that is not said otherwise.
CHAIN = ((REST, "POST /v1/embeddings"), (ROUTER, EMBED), (WORKER, EMBED), (WORKER, MODEL))
PARTS = tuple((WORKER, name) for name in ("tokenize", "engine", "answer"))
INSIDE_ENGINE = tuple((WORKER, name) for name in ("queue", "run"))
ALL = (*CHAIN, *PARTS, *INSIDE_ENGINE)

STAGES: dict[str, str] = {
    "client": "from the client to the shim and back",
    "shim": "JSON, base64, and the way to the router",
    "router": "choice of a worker, and the way to it",
    "front": "the worker's checks, permits and message",
    "tokenize": "texts to token ids",
    "hop": "to the engine's process and back",
    "queue": "until the engine takes the first input",
    "feed": "adding inputs, collecting rows",
    "step": "engine steps, the model's work included",
    "answer": "rows to the bytes of the answer",
}
# By how much the stages' medians, added up, may miss the median of the whole: medians do
# not add up exactly. And by how many ms a span may stick out of the one around it: the
# system's clock is set while we measure.
RESIDUE, CLOCK_MS = 0.1, 0.5
_WARM, _EXPORT_SECONDS = 3, 20.0


class Request(NamedTuple):
    """A request that the client made."""

    trace: str
    ms: float


class Profile(NamedTuple):
    """Medians of a batch size, in ms."""

    batch: int
    requests: int
    total: float
    untraced: float
    """The same stack, asked without a trace."""
    stages: dict[str, float]

    @property
    def residue(self) -> float:
        """The part of the client's time by which the stages' sum misses it."""
        return abs(sum(self.stages.values()) - self.total) / self.total


def stages(total: float, spans: Mapping[tuple[str, str], Span]) -> dict[str, float]:
    """What each stage of one request took, in ms; their sum is `total`."""
    rest, router, worker, model = (spans[name].ms for name in CHAIN)
    tokenize, engine, answer = (spans[name].ms for name in PARTS)
    queue, run = (spans[name].ms for name in INSIDE_ENGINE)
    step = spans[WORKER, "run"].numbers[STEP_SECONDS] * 1e3
    return {
        "client": total - rest,
        "shim": rest - router,
        "router": router - worker,
        "front": worker - model + (model - tokenize - engine - answer),
        "tokenize": tokenize,
        "hop": engine - queue - run,
        "queue": queue,
        "feed": run - step,
        "step": step,
        "answer": answer,
    }


def profile(
    batch: int, requests: Sequence[Request], spans: Iterable[Span], untraced: float
) -> Profile:
    """The medians of requests; raises ValueError for a span that is missing or not nested."""
    traces: dict[str, dict[tuple[str, str], Span]] = {}
    for span in spans:
        traces.setdefault(span.trace, {})[span.service, span.name] = span
    found = [_nested(request, traces.get(request.trace, {})) for request in requests]
    medians = {name: median(one[name] for one in found) for name in STAGES}
    total = median(request.ms for request in requests)
    return Profile(batch, len(requests), total, untraced, medians)


def _nested(request: Request, spans: Mapping[tuple[str, str], Span]) -> dict[str, float]:
    if missing := [name for name in ALL if name not in spans]:
        raise ValueError(f"a request has no span {missing[0]}, only {sorted(spans)}")
    found = stages(request.ms, spans)
    if negative := [name for name, ms in found.items() if ms < -CLOCK_MS]:
        raise ValueError(f"{negative[0]}: spans are not inside each other, {found}")
    return found


def table(profiles: Sequence[Profile]) -> str:
    """Stages by batch size, medians in ms, and what part of the whole each is."""
    heads = (f"batch {one.batch}" for one in profiles)
    lines = [f"| stage, ms | {' | '.join(heads)} |", "| --- " + "| ---: " * len(profiles) + "|"]
    for name, meaning in STAGES.items():
        cells = (f"{one.stages[name]:.2f} ({one.stages[name] / one.total:.0%})" for one in profiles)
        lines.append(f"| {name}: {meaning} | {' | '.join(cells)} |")
    sums = (f"{sum(one.stages.values()):.2f} (residue {one.residue:.1%})" for one in profiles)
    totals = (f"{one.total:.2f}" for one in profiles)
    untraced = (f"{one.untraced:.2f}" for one in profiles)
    return "\n".join(
        [
            *lines,
            f"| sum of the stages | {' | '.join(sums)} |",
            f"| the client's median | {' | '.join(totals)} |",
            f"| without a trace | {' | '.join(untraced)} |",
        ]
    )


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
        began = time.perf_counter()
        self._connection.request("POST", "/v1/embeddings", body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        ms = (time.perf_counter() - began) * 1e3
        if response.status != http.client.OK:
            raise RuntimeError(f"HTTP {response.status}: {answer[:500]!r}")
        return Request(trace, ms)


@click.command()
@click.option("--batches", type=Numbers(), default="1,15,128,1024", show_default=True)
@click.option("--requests", "count", default=30, show_default=True, help="Of each batch size.")
@click.option("--words", default=18, show_default=True, help="In each text.")
@click.option("--model", default="", help="Folder of the model; all-MiniLM-L6-v2 if not given.")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--ours", multiple=True, help="One more flag of our worker; repeat for more.")
def main(
    batches: list[float], count: int, words: int, model: str, dtype: str, ours: tuple[str, ...]
) -> None:
    """Print where a request's time goes; fails when the stages do not add up to it."""
    leave_on_sigterm()
    plan = Plan(model or minilm(), ("--dtype", dtype, "--enforce-eager"), ours)
    with tempfile.TemporaryDirectory() as logs:
        found = measure(plan, [int(batch) for batch in batches], count, words, Path(logs))
    click.echo(table(found))
    if over := [one for one in found if one.residue > RESIDUE]:
        sys.exit(f"batch {over[0].batch}: {over[0].residue:.1%} of the time is in no stage")


if __name__ == "__main__":
    main()
