"""What a prompt costs us in CPU stays within the recorded baseline."""

from __future__ import annotations

import pytest

from bench import guard


def test_cost_of_prompts() -> None:
    """Router and worker take no more CPU for a prompt than the baseline and its margin."""
    assert guard.guarded() == []


@pytest.mark.parametrize("batch", ["1", "64"])
def test_more_than_the_margin_is_named(batch: str) -> None:
    """A cost beyond the margin is reported with what was recorded; one within it is not."""
    baseline = guard.read()
    within = {name: cost * (1 + baseline.margin * 0.99) for name, cost in baseline.costs.items()}
    beyond = {**within, batch: baseline.costs[batch] * (1 + baseline.margin * 1.01)}
    assert guard.exceeded(within, baseline) == []
    (message,) = guard.exceeded(beyond, baseline)
    assert message.startswith(f"batch {batch}: ")
    assert f"recorded {baseline.costs[batch]:.3f}" in message


def test_margin_is_wider_than_the_noise() -> None:
    """The recorded runs themselves would all have passed, twice over."""
    baseline = guard.read()
    assert all(2 * off < baseline.margin for off in baseline.spread.values())
