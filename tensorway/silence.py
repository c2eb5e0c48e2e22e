"""Which workers answer nothing: a pure policy, on a clock that is passed in.

A worker whose engine hangs says that it is well, and its connection is, too. Only what it
leaves unanswered tells, beside what others answer meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

# No silence shorter than this tells anything: a busy machine stands still for so long.
LEAST_SECONDS = 0.5
# Times as long as an answer takes elsewhere that is too long.
FACTOR = 4.0
# A silent worker without a request may have one again after so many seconds.
PAUSE_SECONDS = 5.0

# Tokens of a request, and the seconds that its answer took.
Answer = tuple[float, float]


@dataclass
class Silence:
    """How long a worker has had requests and answered none; times are of one clock."""

    open: int = 0
    """Requests that it has not answered."""
    largest: float = 0.0
    """Tokens of the largest one since its last answer."""
    late: bool = False
    """Whether others had answered what it was asked with; until its next answer."""
    _since: float = 0.0
    _before: float = 0.0

    @property
    def doubtful(self) -> bool:
        """Whether it left requests unanswered, and nothing shows that it is well again."""
        return self.late or self._before > LEAST_SECONDS

    def begin(self, now: float, work: float) -> None:
        """Count a request of so many tokens."""
        if not self.open:
            self._since = now
        self.open += 1
        self.largest = max(self.largest, work)

    def hear(self, now: float) -> None:
        """Note an answer, or a part of one."""
        self._since, self._before, self.late = now, 0.0, False
        if self.open <= 1:
            self.largest = 0.0

    def end(self, now: float) -> None:
        """Count the end of a request, answered or not."""
        self.open -= 1
        if not self.open:
            # Callers who give up must not make it look well.
            self._before += now - self._since
            self._since = now

    def seconds(self, now: float) -> float:
        """Time with a request since its last answer."""
        return self._before + (now - self._since if self.open else 0.0)

    def suspect(self, now: float) -> bool:
        """Whether it may be overdue, whatever others answered."""
        return self.late or self.seconds(now) > LEAST_SECONDS

    def overdue(self, now: float, answers: Collection[Answer]) -> bool:
        """Whether it is silent for longer than such answers explain."""
        if not self.open and now - self._since > PAUSE_SECONDS:
            return False
        seconds = self.seconds(now)
        return self.late or seconds > patience(self.largest, answers)


def patience(work: float, answers: Collection[Answer]) -> float:
    """Seconds after which a request of so many tokens is late, judged by others' answers.

    A request that is larger than another one may take longer in proportion. Without any
    answer nothing is late.
    """
    if not answers:
        return float("inf")
    usual = median(seconds * max(1.0, work / max(size, 1.0)) for size, seconds in answers)
    return max(LEAST_SECONDS, FACTOR * usual)
