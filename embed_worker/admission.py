"""How much work a worker takes on: counted in inputs, bytes and tokens, refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields

from tensorway.errors import ResourceExhausted, TooLarge

# Bulk work may fill this part of the queue, so that there is always room for
# interactive work.
BULK_SHARE = 0.5
_AMPLE_SHARE = 0.25
# What is told to wait when nothing is known about the speed yet, and its bounds.
_RETRY_SECONDS, _LEAST_RETRY, _MOST_RETRY = 1.0, 0.05, 30.0
# Weight of the newest step in the mean speed.
_NEWEST = 0.2


@dataclass(frozen=True)
class Cost:
    """What a request takes of each resource."""

    requests: int = 0
    inputs: int = 0
    tokens: int = 0
    bytes: int = 0


class Permit:
    """Work that was accepted."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost


class Admission:
    """The permits for work in the worker, queued and running."""

    def __init__(self, limits: Cost) -> None:
        self.held = Cost()
        self._limits = limits
        self._tokens_per_second = 0.0
        self._freed = asyncio.Event()

    @contextmanager
    def hold(self, cost: Cost, *, bulk: bool = False) -> Iterator[Permit]:
        """Hold a permit, or raise ResourceExhausted at once when there is no room."""
        self._check(cost, BULK_SHARE if bulk else 1.0)
        self._add(cost, 1)
        permit = Permit(cost)
        try:
            yield permit
        finally:
            self.shrink(permit, Cost())

    def shrink(self, permit: Permit, cost: Cost) -> None:
        """Give back what a permit does not need beyond this."""
        self._add(permit.cost, -1)
        self._add(cost, 1)
        permit.cost = cost
        self._freed.set()
        self._freed.clear()

    def has_ample_room(self, cost: Cost) -> bool:
        """Whether most of the limits would be left beside it."""
        try:
            self._check(cost, _AMPLE_SHARE)
        except ResourceExhausted:
            return False
        return True

    async def wait_for_room(self, cost: Cost) -> None:
        """Return when there is room for bulk work; raises TooLarge if there never is."""
        while True:
            try:
                return self._check(cost, BULK_SHARE)
            except TooLarge:
                raise
            except ResourceExhausted:
                await self._freed.wait()

    def worked(self, tokens: int, seconds: float) -> None:
        """Learn the engine's speed from a step."""
        speed = tokens / max(seconds, 1e-6)
        before = self._tokens_per_second or speed
        self._tokens_per_second = before + _NEWEST * (speed - before)

    def retry_after(self) -> float:
        """Seconds until about half of the tokens queued now are done."""
        if not self._tokens_per_second:
            return _RETRY_SECONDS
        seconds = self.held.tokens / 2 / self._tokens_per_second
        return min(max(seconds, _LEAST_RETRY), _MOST_RETRY)

    def _check(self, cost: Cost, share: float) -> None:
        for field in fields(Cost):
            name = field.name
            asked, held = getattr(cost, name), getattr(self.held, name)
            limit = max(1, int(getattr(self._limits, name) * share))
            if asked > limit:
                expected = f"expected at most {limit} {name} in a request, got {asked}"
                raise TooLarge(f"{expected} (--max-queued-{name})")
            if asked and held + asked > limit:
                queued = f"{held} of {limit} {name} queued, no room for {asked}"
                raise ResourceExhausted(f"the worker has {queued}", retry_after=self.retry_after())

    def _add(self, cost: Cost, sign: int) -> None:
        pairs = zip(astuple(self.held), astuple(cost), strict=True)
        self.held = Cost(*(held + sign * asked for held, asked in pairs))
