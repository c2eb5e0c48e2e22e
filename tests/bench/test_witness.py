"""What another load generator saw, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from bench.witness import outcome


def record(issued: int, began: int, ended: int, phase: str = "profiling", **more: Any) -> Any:
    """A line of aiperf's records; times in milliseconds."""
    times = {"credit_issued_ns": issued, "request_start_ns": began, "request_end_ns": ended}
    told = {name: ms * 1_000_000 for name, ms in times.items()}
    return {"metadata": {"benchmark_phase": phase, **told}, **more}


RECORDS = [
    record(0, 1, 500, phase="warmup"),
    record(1000, 1001, 1011),
    record(1020, 1050, 1070),
    record(1030, 1070, 1075, error={"code": 503}),
]


def test_closed_loop() -> None:
    """A caller's time starts with its request; warm-up does not count, failures have no time."""
    found = outcome(RECORDS, opened=False)
    assert found.latencies == pytest.approx([10, 20])
    assert found.failures == 1
    assert (found.began, found.ended) == pytest.approx((1.001, 1.070))


def test_open_loop_counts_from_when_a_request_was_due() -> None:
    """What a request waited for the ones before it is part of its time."""
    assert outcome(RECORDS, opened=True).latencies == pytest.approx([11, 50])
