"""Which worker gets the next request: small pure functions, picked by name.

All of them are given workers that may take work, and look only at what each worker
carries. The router balances with them, and so does a client in direct mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tensorway.silence import Silence

# Tokens that a worker is taken to accept when it does not tell.
CAPACITY = 65_536.0
# Part of its capacity that a full worker still counts as free, so that a pool of
# full workers goes on sharing evenly instead of dividing by nothing.
LEAST_FREE = 0.01


@dataclass(eq=False, kw_only=True)
class Replica:
    """A worker that may be picked, and the work it has."""

    capacity: float = CAPACITY
    """Tokens that it accepts."""
    work: float = 0.0
    """Tokens that it has from us and has not answered."""
    foreign: float = 0.0
    """Tokens that it has from others, by its last report."""
    requests: int = 0
    """Requests that it has from us and has not answered."""
    peak: int = 0
    """Most of them at once since its last report."""
    turn: int = 0
    """Number of the pick that chose it last."""
    picks: int = 0
    """Times it was picked."""
    failures: int = 0
    """Failures since its last answer."""
    ejected: bool = False
    """Whether it failed so that it gets nothing until probes of it succeed."""
    draining: bool = False
    """Whether it asked for no new work."""
    lost: bool = field(default=False, repr=False)
    """Whether it is gone for good."""
    silence: Silence = field(default_factory=Silence, repr=False)
    """How long it has not answered."""

    @property
    def ready(self) -> bool:
        """Whether it may be picked."""
        return not (self.ejected or self.draining or self.lost)

    @property
    def fill(self) -> float:
        """The part of its capacity that is taken; may be above 1."""
        return (self.work + self.foreign) / self.capacity

    @property
    def free(self) -> float:
        """Tokens that it would still accept, never 0."""
        return self.capacity * max(1.0 - self.fill, LEAST_FREE)

    def take(self, work: float, turn: int) -> None:
        """Count a request that is sent to it."""
        self.work += work
        self.requests += 1
        self.peak = max(self.peak, self.requests)
        self.picks += 1
        self.turn = turn

    def give(self, work: float) -> None:
        """Count the end of a request."""
        self.work -= work
        self.requests -= 1

    def report(self, requests: int, tokens: int) -> None:
        """Note the load that it reports, which includes what it has from us.

        A report is older than it looks, so our part of it is taken to be the most that
        we had there since the report before.
        """
        others = max(0, requests - self.peak)
        self.foreign = tokens * others / requests if requests else 0.0
        self.peak = self.requests


R = TypeVar("R", bound=Replica)
Policy = Callable[[Sequence[R], Random], R]


def round_robin(replicas: Sequence[R], random: Random) -> R:  # noqa: ARG001
    """The worker that was picked longest ago."""
    return min(replicas, key=lambda replica: replica.turn)


def least_work(replicas: Sequence[R], random: Random) -> R:  # noqa: ARG001
    """The worker with the least work for its capacity; among equals, the longest idle."""
    return min(replicas, key=lambda replica: (replica.fill, replica.turn))


def power_of_two(replicas: Sequence[R], random: Random) -> R:
    """The better of two taken at random: nearly as even, and no herd on a stale load."""
    return least_work(random.sample(replicas, min(2, len(replicas))), random)


def weighted_random(replicas: Sequence[R], random: Random) -> R:
    """A worker at random, the likelier the more capacity it has free."""
    return random.choices(replicas, [replica.free for replica in replicas])[0]


POLICIES: dict[str, Policy[Replica]] = {
    "least_work": least_work,
    "power_of_two": power_of_two,
    "weighted_random": weighted_random,
    "round_robin": round_robin,
}
