"""The workers of one model: which of them gets a request, and what a failure means.

A pool does no input or output. The router and clients in direct mode keep its
``replicas`` up to date and send requests inside :meth:`Pool.attempt`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

import grpc

from tensorway import balance, retry, silence
from tensorway.balance import Policy, Replica
from tensorway.errors import TensorwayError, Unavailable

R = TypeVar("R", bound=Replica)

# Latest answers that say how long one takes.
_ANSWERS = 256
# With fewer calls than this a quantile says nothing.
_ENOUGH = 32


@dataclass(frozen=True)
class Rules:
    """How the pools of a router or a client behave."""

    policy: Policy[Any] = balance.least_work
    outliers: retry.Outliers = field(default_factory=retry.Outliers)
    retry_ratio: float = 0.2
    """Retries that each request pays for."""
    retry_reserve: float = 500.0
    """Retries allowed at once after a quiet time."""
    split_inputs: int = 64
    """Inputs from which on a batch is spread over workers; 0: never."""
    shard_inputs: int = 16
    """Fewest inputs that are worth a shard."""
    hedge_quantile: float = 0.0
    """Part of the calls that are faster than the wait for a second try; 0: none is made."""


@dataclass
class Counts:
    """What happened in a pool, ever; and what happens now."""

    in_flight: int = 0
    """Requests of whoever keeps the pool that have no answer yet."""
    retries: int = 0
    ejections: int = 0
    hedges: int = 0
    shards: int = 0


def _nothing(replica: Any) -> None:
    """The default of ``on_eject``."""


class Pool(Generic[R]):
    """The workers of one model, and the requests they have."""

    def __init__(
        self,
        model: str,
        rules: Rules,
        *,
        on_eject: Callable[[R], None] = _nothing,
        random: Random | None = None,
    ) -> None:
        self.model = model
        self.rules = rules
        self.replicas: list[R] = []
        self.counts = Counts()
        self.budget = retry.Budget(rules.retry_ratio, rules.retry_reserve)
        self._on_eject = on_eject
        self._random = random or Random()  # noqa: S311
        self._turn = 0
        self._answers: deque[silence.Answer] = deque(maxlen=_ANSWERS)

    def ready(self) -> list[R]:
        """The workers that may be given work."""
        return [replica for replica in self.replicas if replica.ready]

    def answering(self) -> list[R]:
        """Those of them that are not silent for too long, as far as the pool can do without."""
        ready, now = self.ready(), time.monotonic()
        if not (silent := self._silent(ready, now)):
            return ready
        silent.sort(key=lambda replica: replica.silence.seconds(now), reverse=True)
        spared = silent[: int(len(ready) * self.rules.outliers.share)]
        return [replica for replica in ready if replica not in spared]

    def emptiest(self, count: int) -> list[R]:
        """So many workers with the least work for their capacity, or all, that answer."""
        if len(answering := self.answering()) <= count:
            return answering
        return sorted(answering, key=lambda replica: (replica.fill, replica.turn))[:count]

    def others(self, trial: retry.Trial) -> list[R]:
        """The workers that may be given a request besides those that it was given."""
        fresh = [replica for replica in self.answering() if replica not in trial.tried]
        return fresh or [replica for replica in self.ready() if replica not in trial.tried]

    @contextmanager
    def attempt(self, trial: retry.Trial, work: float, first: R | None = None) -> Iterator[R]:
        """One try of a request of so many tokens, on the worker that this gives.

        A failure inside is swallowed when the request may be tried again; every other
        one is raised as what the caller is told. So a request is a loop around this.
        """
        replica = first if first and first.ready else self._pick(trial)
        self._turn += 1
        replica.take(work, self._turn)
        trial.tried.add(replica)
        trial.active += 1
        started = time.monotonic()
        replica.silence.begin(started, work)
        try:
            yield replica
        except (grpc.aio.AioRpcError, retry.WorkerLost) as error:
            self._failed(replica, error, time.monotonic() - started)
            trial.after(error, self.budget)
            self.counts.retries += 1
        else:
            replica.failures = 0
            self._answered(replica, work, started)
        finally:
            trial.active -= 1
            replica.give(work)
            replica.silence.end(time.monotonic())

    def patience(self, work: float) -> float | None:
        """Seconds after which a request of so many tokens is tried twice; None: it is not.

        That is the hedging quantile, or else how long an answer takes, while there are
        workers that may not answer.
        """
        if self.rules.hedge_quantile and len(self._answers) >= _ENOUGH:
            taken = sorted(seconds for _, seconds in self._answers)
            return taken[int(self.rules.hedge_quantile * (len(taken) - 1))]
        if any(replica.silence.doubtful for replica in self.replicas):
            return silence.patience(work, self._answers)
        return None

    def eject(self, replica: R) -> None:
        """Give the worker nothing until :meth:`restore`."""
        # A call may fail after its worker left.
        if replica in self.replicas and not replica.ejected:
            replica.ejected = True
            self.counts.ejections += 1
            self._on_eject(replica)

    def restore(self, replica: R) -> None:
        """Give the worker work again."""
        replica.ejected, replica.failures = False, 0

    def _pick(self, trial: retry.Trial) -> R:
        if not (choice := self.others(trial)):
            raise trial.error or self.nobody()
        picked: R = self.rules.policy(choice, self._random)
        return picked

    def nobody(self) -> TensorwayError:
        """The error when no worker may be given work."""
        return Unavailable(f"model {self.model!r} has no live worker", reason="NO_WORKER")

    def _silent(self, ready: list[R], now: float) -> list[R]:
        suspects = [replica for replica in ready if replica.silence.suspect(now)]
        if suspects:
            # Where every answer takes long, most are suspects: one look at the answers clears them.
            least = silence.patience(0.0, self._answers)
            suspects = [r for r in suspects if r.silence.late or r.silence.seconds(now) > least]
        return [replica for replica in suspects if replica.silence.overdue(now, self._answers)]

    def _answered(self, replica: R, work: float, started: float) -> None:
        now = time.monotonic()
        replica.silence.hear(now)
        self._answers.append((work, now - started))

    def _failed(self, replica: R, error: retry.CallError, seconds: float) -> None:
        if not retry.is_fault(error, seconds):
            replica.failures = 0
            return
        replica.failures += 1
        if retry.failure(error) in {retry.Failure.LOST, retry.Failure.UNREACHED}:
            self.eject(replica)
        else:
            self._judge(replica)

    def _judge(self, replica: R) -> None:
        ejected = sum(other.ejected for other in self.replicas)
        if self.rules.outliers.eject(replica, ejected, len(self.replicas)):
            self.eject(replica)
