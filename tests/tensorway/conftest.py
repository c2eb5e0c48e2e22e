"""Fixtures of the shared core's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

Count = Callable[[str, str], float]


@pytest.fixture
def rpcs() -> Count:
    """How many more RPCs of a method ended with a code since the test began."""
    before = _counts()
    return lambda method, code: _counts().get((method, code), 0) - before.get((method, code), 0)


def _counts() -> dict[tuple[str, str], float]:
    return {
        (sample.labels["method"], sample.labels["code"]): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "tensorway_rpcs_total"
    }
