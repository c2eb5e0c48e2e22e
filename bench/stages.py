"""A request's spans cut into stages that follow each other; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from bench.clients import NAME
from bench.collector import Span

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
# By how much the stages, added up, may miss the median of the whole. And by how many ms a
# span may stick out of the one around it: the system's clock is set while we measure.
RESIDUE, CLOCK_MS = 0.1, 0.5


class Request(NamedTuple):
    """A request that the client made."""

    trace: str
    began: int
    """Nanoseconds since 1970."""
    ended: int

    @property
    def ms(self) -> float:
        """How long it was."""
        return (self.ended - self.began) / 1e6


class Profile(NamedTuple):
    """What a typical request of a batch size takes, in ms.

    Typical is the half of all requests whose times are in the middle; stages are means over
    them. (Medians of the stages would be of different requests, and would not add up.)
    """

    batch: int
    requests: int
    total: float
    """Median of all."""
    untraced: float
    """The same stack, asked without a trace."""
    stages: dict[str, float]

    @property
    def residue(self) -> float:
        """The part of the client's time by which the stages' sum misses it."""
        return abs(sum(self.stages.values()) - self.total) / self.total


def stages(request: Request, spans: Mapping[tuple[str, str], Span]) -> dict[str, float]:
    """What each stage of one request took, in ms; their sum is what the request took."""
    _, router, worker, model = (spans[name].ms for name in CHAIN)
    # A client may have its answer before the shim notices that it was taken.
    shim = spans[CHAIN[0]]
    rest = (min(shim.ended, request.ended) - max(shim.began, request.began)) / 1e6
    tokenize, engine, answer = (spans[name].ms for name in PARTS)
    queue, run = (spans[name].ms for name in INSIDE_ENGINE)
    step = spans[WORKER, "run"].numbers[STEP_SECONDS] * 1e3
    return {
        "client": request.ms - rest,
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
    """The profile of requests; raises ValueError for a span that is missing or not nested."""
    traces: dict[str, dict[tuple[str, str], Span]] = {}
    for span in spans:
        known = traces.setdefault(span.trace, {})
        known[span.service, span.name] = _joined(known.get((span.service, span.name)), span)
    found = [_nested(request, traces.get(request.trace, {})) for request in requests]
    quarter = len(found) // 4
    typical = sorted(found, key=lambda one: sum(one.values()))[quarter : len(found) - quarter]
    means = {name: fmean(one[name] for one in typical) for name in STAGES}
    total = median(request.ms for request in requests)
    return Profile(batch, len(requests), total, untraced, means)


def _joined(before: Span | None, span: Span) -> Span:
    """A span over both: a large request is pieces in the engine, one behind the other.

    They wait for each other, so that only the first one's queue is the request's; and what
    surrounds the steps of one piece is steps of another, but for the most of any.
    """
    if before is None or span.name == "queue":
        return min(before or span, span, key=lambda one: one.began)
    joined = span._replace(began=min(before.began, span.began), ended=max(before.ended, span.ended))
    around = max(one.ms / 1e3 - one.numbers.get(STEP_SECONDS, 0.0) for one in (before, span))
    return joined._replace(numbers={**span.numbers, STEP_SECONDS: joined.ms / 1e3 - around})


def _nested(request: Request, spans: Mapping[tuple[str, str], Span]) -> dict[str, float]:
    if missing := [name for name in ALL if name not in spans]:
        raise ValueError(f"a request has no span {missing[0]}, only {sorted(spans)}")
    found = stages(request, spans)
    if negative := [name for name, ms in found.items() if ms < -CLOCK_MS]:
        raise ValueError(f"{negative[0]}: spans are not inside each other, {found}")
    return found


def table(profiles: Sequence[Profile]) -> str:
    """Stages by batch size, in ms, and what part of the whole each is."""
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
