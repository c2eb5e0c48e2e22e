"""When a failed request is tried again."""

from __future__ import annotations

import grpc
import pytest

from tensorway import errors
from tensorway.balance import Replica
from tensorway.errors import FailedPrecondition, TensorwayError, Unavailable
from tensorway.retry import (
    Budget,
    CallError,
    Failure,
    Outliers,
    Trial,
    WorkerLost,
    failure,
    is_fault,
)

STATUSES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def rpc_error(
    code: grpc.StatusCode, text: str = "", said: TensorwayError | None = None
) -> grpc.aio.AioRpcError:
    """A failed call, with the worker's own words if it spoke."""
    details = ((errors.STATUS_DETAILS, errors.to_status(said).SerializeToString()),) if said else ()
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*details), details=text
    )


UNREACHED = rpc_error(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error")
LOST = rpc_error(grpc.StatusCode.UNAVAILABLE, "Socket closed")
DECLINED = rpc_error(grpc.StatusCode.UNAVAILABLE, "no", Unavailable("no", reason="SHUTTING_DOWN"))
RESET = rpc_error(grpc.StatusCode.CANCELLED, "CANCELLED")
ENGINE_DEAD = rpc_error(grpc.StatusCode.UNAVAILABLE, "no", Unavailable("the engine died"))


def after(*outcomes: CallError, budget: Budget | None = None) -> int:
    """How many workers a request is given that fails like this, until it is refused."""
    trial = Trial()
    for outcome in outcomes:
        trial.tried.add(Replica())
        trial.after(outcome, budget or Budget())
    return len(trial.tried)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UNREACHED, Failure.UNREACHED),
        (LOST, Failure.LOST),
        (DECLINED, Failure.DECLINED),
        (RESET, Failure.DECLINED),
        (ENGINE_DEAD, Failure.LOST),
        (WorkerLost(), Failure.LOST),
    ],
)
def test_kinds_of_unavailable(error: CallError, kind: Failure) -> None:
    """Whether the worker saw the request, and whether it survived, decides what follows."""
    assert failure(error) is kind


@pytest.mark.parametrize("code", STATUSES)
def test_only_unavailable_is_tried_again(code: grpc.StatusCode) -> None:
    """Every other code is the caller's at once."""
    if code is grpc.StatusCode.UNAVAILABLE:
        assert after(rpc_error(code)) == 1
    else:
        with pytest.raises(TensorwayError):
            after(rpc_error(code))


def test_a_request_that_lost_two_workers_is_refused() -> None:
    """It may be what they died of; nobody should try it again."""
    with pytest.raises(FailedPrecondition, match="2 workers were lost") as caught:
        after(LOST, LOST)

    assert caught.value.reason == "POISON_REQUEST"


def test_after_a_loss_one_more_worker_has_the_request() -> None:
    """A worker that could not be reached did not have it, one that declined did."""
    assert after(LOST, UNREACHED, UNREACHED) == 3
    with pytest.raises(Unavailable):
        after(LOST, DECLINED)


def test_so_many_workers_are_tried_and_no_more() -> None:
    """A request does not wander through a large fleet."""
    assert after(DECLINED, UNREACHED, DECLINED) == 3
    with pytest.raises(Unavailable):
        after(DECLINED, UNREACHED, DECLINED, DECLINED)


def test_nothing_is_tried_again_once_an_answer_has_begun() -> None:
    """The caller has seen the first part of it."""
    with pytest.raises(Unavailable):
        Trial(final=True).after(UNREACHED, Budget())


def test_a_hedged_request_that_lost_one_worker_has_its_second_already() -> None:
    """The other try that goes on is the one more that is allowed."""
    with pytest.raises(Unavailable):
        Trial(active=2).after(LOST, Budget())


def test_the_budget_runs_out_and_requests_fill_it() -> None:
    """Retries are a part of the requests, after a reserve is spent."""
    budget = Budget(ratio=0.5, reserve=2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]

    budget.pay()
    assert not budget.spend()
    budget.pay()
    assert budget.spend()
    with pytest.raises(Unavailable):
        after(UNREACHED, budget=budget)


def test_a_late_deadline_counts_against_the_worker_and_a_short_one_does_not() -> None:
    """A caller that allows a millisecond proves nothing."""
    late = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED)
    assert is_fault(late, 2.0)
    assert not is_fault(late, 0.001)
    assert is_fault(rpc_error(grpc.StatusCode.INTERNAL), 0.001)
    assert not is_fault(rpc_error(grpc.StatusCode.INVALID_ARGUMENT), 2.0)


def test_a_worker_goes_after_enough_failures_while_enough_others_stay() -> None:
    """A fault that all share must not empty the pool."""
    rules, failing = Outliers(failures=5, share=0.5), Replica(failures=5)

    assert rules.eject(failing, ejected=0, total=2)
    assert not rules.eject(failing, ejected=1, total=2)
    assert not rules.eject(failing, ejected=0, total=1)
    assert not rules.eject(Replica(failures=4), ejected=0, total=2)
