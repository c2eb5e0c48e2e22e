"""Where a request's time goes: what the services tell, and what is made of it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bench import spans, stages, systems
from bench.collector import Span, collecting
from bench.processes import Launcher
from bench.stages import CHAIN, INSIDE_ENGINE, PARTS, WORKER, Request
from bench.systems import Plan

# Milliseconds of the spans of a request that took 100.
LENGTHS = dict(zip(stages.ALL, (95, 80, 70, 66, 10, 50, 2, 5, 40), strict=True))
ENGINE = (WORKER, "engine")


def trace(name: str = "t", step: float = 0.03, **changed: int) -> list[Span]:
    """The spans of a request; only their lengths count."""
    lengths = LENGTHS | {(WORKER, name): ms for name, ms in changed.items()}
    numbers = {stages.STEP_SECONDS: step}
    return [
        Span(service, span, name, "", "", 0, ms * 1_000_000, numbers)
        for (service, span), ms in lengths.items()
    ]


def request(name: str, ms: int) -> Request:
    """A request that took so long, from the same moment as its spans."""
    return Request(name, 0, ms * 1_000_000)


def test_stages_are_what_spans_take_by_themselves() -> None:
    """Each stage is its span less those inside it; together they are the whole request."""
    found = stages.stages(request("t", 100), {(span.service, span.name): span for span in trace()})
    assert found == pytest.approx(
        {"client": 5, "shim": 15, "router": 10, "front": 8, "tokenize": 10}
        | {"hop": 5, "queue": 5, "feed": 10, "step": 30, "answer": 2}
    )
    assert sum(found.values()) == pytest.approx(100)


def test_what_comes_after_the_answer_is_not_of_the_request() -> None:
    """The shim's span may end after the client has its answer; that time is nobody's wait."""
    found = stages.stages(request("t", 90), {(span.service, span.name): span for span in trace()})
    assert (found["client"], found["shim"]) == (0, 10)
    assert sum(found.values()) == pytest.approx(90)


def test_the_typical_request() -> None:
    """A profile is of the middle half of the requests, and tells what their sum misses."""
    asked = [request(name, ms) for name, ms in (("a", 98), ("b", 100), ("c", 104), ("d", 150))]
    changed = {"a": {"answer": 1}, "c": {"tokenize": 12}, "d": {"queue": 6}}
    recorded = [span for name in "abcd" for span in trace(name, **changed.get(name, {}))]
    profile = stages.profile(15, asked, recorded, untraced=90)
    assert (profile.total, profile.untraced, profile.requests) == (102, 90, 4)
    assert profile.stages["tokenize"] == pytest.approx((10 + 12) / 2)
    assert profile.stages["answer"] == pytest.approx(2)
    assert profile.residue == pytest.approx(0)
    table = stages.table([profile])
    assert "| step: engine steps, the model's work included | 30.00 (29%) |" in table
    assert "| sum of the stages | 102.00 (residue 0.0%) |" in table


def test_a_span_that_is_missing_is_named() -> None:
    """Without one of its spans a request's time cannot be told."""
    recorded = [span for span in trace() if span.name != "queue"]
    with pytest.raises(ValueError, match="a request has no span"):
        stages.profile(1, [request("t", 100)], recorded, untraced=90)


def test_spans_that_stick_out_are_named() -> None:
    """Tokenising cannot take longer than the call that it is part of."""
    with pytest.raises(ValueError, match="front: spans are not inside each other"):
        stages.profile(1, [request("t", 100)], trace(tokenize=60), untraced=90)


def test_the_services_tell_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request through everything gives one span for each stage, each inside its parent."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with ExitStack() as stack:
        collector, address = stack.enter_context(collecting())
        fake = ("--engine", "fake", "--max-num-seqs", "16")
        plan = Plan("model", (), fake, observe=("--otlp-endpoint", address))
        subjects = systems.start(["tensorway"], Launcher(stack, tmp_path), stack, plan)
        (rest,) = (subject for subject in subjects if subject.name == "rest")
        client = stack.enter_context(closing(spans.Client(rest.target.address)))
        quiet = client.ask(["text"], traced=False)
        # The last one takes three steps.
        asked = [client.ask(["text"] * batch, traced=True) for batch in (1, 1, 40)]
        found = spans.exported(collector, {one.trace for one in asked})
        assert not [span for span in collector.spans() if span.trace == quiet.trace]
    assert len(found) == len(asked) * len(stages.ALL)
    for one in asked:
        _check({(s.service, s.name): s for s in found if s.trace == one.trace}, one)
    assert stages.profile(1, asked, found, untraced=quiet.ms).requests == 3


def _check(found: dict[tuple[str, str], Span], asked: Request) -> None:
    parents = dict(zip(CHAIN[1:], CHAIN[:-1], strict=True))
    parents |= dict.fromkeys(PARTS, CHAIN[-1]) | dict.fromkeys(INSIDE_ENGINE, ENGINE)
    assert {name: found[name].parent for name in parents} == {
        name: found[parent].id for name, parent in parents.items()
    }
    assert sum(stages.stages(asked, found).values()) == pytest.approx(asked.ms)


def test_pieces_of_a_request_are_one_behind_the_other() -> None:
    """Together they take from the first's start to the last's end, and wait once."""

    def span(name: str, began: int, ended: int, step: float = 0.0) -> Span:
        numbers = {stages.STEP_SECONDS: step}
        return Span(WORKER, name, "t", "", "", began * 1_000_000, ended * 1_000_000, numbers)

    once = [one for one in trace() if (one.service, one.name) not in INSIDE_ENGINE]
    queues = [span("queue", 0, 2), span("queue", 1, 20)]
    runs = [span("run", 2, 22, 0.015), span("run", 20, 45, 0.021)]
    found = stages.profile(15, [request("t", 100)] * 4, [*once, *queues, *runs], 0).stages
    assert {name: found[name] for name in ("queue", "feed", "step", "hop")} == pytest.approx(
        {"queue": 2, "feed": 5, "step": 38, "hop": 5}
    )
