"""The latest requests of each model, as rate, latency and errors."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from msgspec import Struct

# Requests that are remembered, and for how many seconds they are shown.
KEPT = 4096
WINDOW = 30.0


class Summary(Struct, frozen=True):
    """Requests of the latest seconds."""

    rate: float = 0.0
    """Requests that ended, per second."""
    errors: float = 0.0
    """The part of them that failed."""
    p50: float | None = None
    """Half of those that succeeded took at most so many seconds."""
    p99: float | None = None
    """99 of 100 that succeeded took at most so many seconds."""


class _Ended(NamedTuple):
    at: float
    seconds: float
    ok: bool


class Recent:
    """The latest requests of one model; times are in seconds of one clock."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._ended: deque[_Ended] = deque(maxlen=KEPT)

    def add(self, at: float, seconds: float, ok: bool) -> None:
        """Note a request that ended."""
        self._first = at if self._first is None else self._first
        self._ended.append(_Ended(at, seconds, ok))

    def summary(self, now: float) -> Summary:
        """What ended within the window before now."""
        ended = [entry for entry in self._ended if now - entry.at <= WINDOW]
        if self._first is None or not ended:
            return Summary()
        # When all that is kept is this young, it reaches back less far than the window.
        since = ended[0].at if len(ended) == KEPT else max(self._first, now - WINDOW)
        good = sorted(entry.seconds for entry in ended if entry.ok)
        return Summary(
            rate=len(ended) / max(now - since, 1.0),
            errors=1 - len(good) / len(ended),
            p50=good[len(good) // 2] if good else None,
            p99=good[len(good) * 99 // 100] if good else None,
        )


Recents = defaultdict[str, Recent]
