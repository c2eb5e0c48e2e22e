"""What was measured, put together: pure functions."""

from __future__ import annotations

import pytest

from bench import report
from bench.measure import Cell, Turn

CELL = Cell(batch=10, callers=1)


def turn(latencies: list[float], seconds: float, **changed: float) -> Turn:
    """A turn with these times."""
    known = {"failures": 0, "cpu": 2.0, "peak": 100.0, "cosine": 0.9999, **changed}
    return Turn(latencies, seconds, **known)


def test_rounds_are_put_together() -> None:
    """Speed is all prompts over all time; cost is per 1000 prompts; the worst cosine counts."""
    turns = [turn([10, 20], 1.0), turn([30, 40], 3.0, peak=300.0, cosine=0.9995, failures=1)]
    (row,) = report.rows(("router", CELL, one) for one in turns)
    assert (row.requests, row.failures, row.p50, row.max) == (4, 1, 25, 40)
    assert row.prompts_per_second == pytest.approx(40 / 4)
    assert row.spread == pytest.approx((20 - 20 / 3) / 10)
    assert row.cpu_per_1000 == pytest.approx(4 / 40 * 1000)
    assert (row.peak_mib, row.cosine) == (300, 0.9995)


def test_ratios_are_above_one_where_ours_is_better() -> None:
    """Prompts/s of ours over theirs, and their times over ours."""
    measured = [("router", CELL, turn([10, 10], 1.0)), ("vllm-base64", CELL, turn([30], 1.0))]
    table = report.markdown(report.rows(measured), "router")
    assert "| batch 10, 1 callers | 2.00, 3.00, 3.00 |" in table


def test_what_was_not_measured_is_not_compared() -> None:
    """An engine without a server has no open loop, and no ratio there."""
    opened = Cell(batch=1, callers=16, rate=20)
    measured = [
        ("router", opened, turn([10], 1.0)),
        ("router", CELL, turn([10], 1.0)),
        ("llm", CELL, turn([5], 1.0)),
    ]
    lines = report.ratios(report.rows(measured), "router")
    assert "| batch 1, 20 requests/s | - |" in lines
    assert "| batch 10, 1 callers | 1.00, 0.50, 0.50 |" in lines
