"""When a failed request is tried again: one policy for all RPCs, without a socket or clock.

Only UNAVAILABLE, and what a server reset as it stopped, is tried again, only on another
worker, and only while the budget lasts. A worker that was lost while it had the request may
have been killed by it, so after a loss one more worker gets it; a request that has lost two
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import grpc

from tensorway.balance import Replica
from tensorway.errors import (
    FailedPrecondition,
    TensorwayError,
    Unavailable,
    from_rpc_error,
)

# Reasons of an UNAVAILABLE that no request can be to blame for. Every other one may be an
# engine that died of it.
_BLAMELESS = frozenset({"SHUTTING_DOWN", "LOADING", "NO_WORKER"})

# A call that ended by its deadline speaks against the worker only if it had this long.
HUNG_SECONDS = 1.0

# Codes that say more about the worker than about the request.
_FAULTS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
    }
)


class WorkerLost(Exception):
    """A worker was given up while it had the request, before the connection told so."""


CallError = grpc.aio.AioRpcError | WorkerLost


class Failure(Enum):
    """How a worker was unavailable."""

    UNREACHED = "unreached"
    """No connection: it never saw the request."""
    DECLINED = "declined"
    """It answered that it takes no requests."""
    LOST = "lost"
    """It, or its engine, was gone before it answered."""


def failure(error: CallError) -> Failure | None:
    """How the worker was unavailable; None when it was not."""
    if isinstance(error, WorkerLost):
        return Failure.LOST
    if is_reset(error):
        return Failure.DECLINED
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    if from_rpc_error(error).reason in _BLAMELESS:
        return Failure.DECLINED
    # gRPC has one code for a connection that failed and one that broke; its text
    # differs. Whatever is not surely unsent counts as lost.
    unsent = "failed to connect" in (error.details() or "").lower()
    return Failure.UNREACHED if unsent else Failure.LOST


def is_reset(error: grpc.aio.AioRpcError) -> bool:
    """Whether a server that stops reset the call before it looked at it.

    What it has not handed to a handler, gRPC resets. We see CANCELLED, with gRPC's own
    text, though nobody cancelled.
    """
    bare = not error.trailing_metadata() and error.details() == "CANCELLED"
    return bare and error.code() is grpc.StatusCode.CANCELLED


def is_fault(error: CallError, seconds: float) -> bool:
    """Whether the error, after so many seconds, counts against the worker."""
    if isinstance(error, WorkerLost):
        return True
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and seconds >= HUNG_SECONDS
    return late or error.code() in _FAULTS


def told(error: CallError) -> TensorwayError:
    """What the caller is told when the error is the end of it."""
    if isinstance(error, WorkerLost):
        return Unavailable("the worker was lost while it had the request")
    if is_reset(error):
        return Unavailable("the worker stopped before it answered", reason="SHUTTING_DOWN")
    return from_rpc_error(error)


@dataclass
class Budget:
    """Bounds retries to a part of the requests, so that they cannot feed an outage."""

    ratio: float = 0.2
    """Retries that each request pays for."""
    reserve: float = 500.0
    """Retries that are allowed at once after a quiet time."""
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.reserve

    def pay(self) -> None:
        """Count a request."""
        self.left = min(self.reserve, self.left + self.ratio)

    def spend(self) -> bool:
        """Take one retry, if one is left."""
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass
class Trial:
    """What one request has been through."""

    limit: int = 4
    """Most workers to try."""
    tried: set[Replica] = field(default_factory=set)
    """Workers that have been given the request."""
    lost: int = 0
    """Workers that were lost while they had the request."""
    active: int = 0
    """Tries that go on now; more than one when the call is hedged."""
    final: bool = False
    """Whether an answer has begun, so that there is no second try."""
    error: TensorwayError | None = None
    """How the last try ended."""

    def after(self, error: CallError, budget: Budget) -> None:
        """Return if the request may be tried again, or raise what its caller is told."""
        kind = failure(error)
        self.error = told(error)
        if kind is None or self.final:
            raise self.error from None
        self.lost += kind is Failure.LOST
        if self.lost >= 2:
            raise poison(self.lost) from None
        enough = self.lost and (kind is Failure.DECLINED or self.active > 1)
        if enough or len(self.tried) >= self.limit or not budget.spend():
            raise self.error from None


def poison(lost: int) -> TensorwayError:
    """The refusal of a request that may be what its workers die of."""
    return FailedPrecondition(
        f"{lost} workers were lost while they had this request; it is not tried on another",
        reason="POISON_REQUEST",
    )


@dataclass(frozen=True)
class Outliers:
    """When a worker that fails gets no more work, and when it may come back."""

    failures: int = 5
    """Failures in a row that eject a worker."""
    probes: int = 3
    """Good probes in a row that bring it back."""
    share: float = 0.5
    """Largest part of the workers that may be out for failing; the rest must carry on."""

    def eject(self, replica: Replica, ejected: int, total: int) -> bool:
        """Whether a worker should go, when so many of the total are out already."""
        return replica.failures >= self.failures and ejected + 1 <= total * self.share
