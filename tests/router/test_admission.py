"""Work over a limit is refused at once, and nothing that was let in is lost."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from router.admission import Admission, Limit
from tensorway import errors
from tensorway.errors import ResourceExhausted, TooLarge
from tests.router.conftest import Running, routing


async def outcome(router: Running, *texts: str) -> grpc.StatusCode:
    """How a call ends."""
    try:
        await router.embed(*texts)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("limit", ["model_limit", "caller_limit"])
async def test_over_the_limit_is_refused_and_below_it_answered(limit: str) -> None:
    """As many calls as fit are answered, the others refused, and it works again after that."""
    async with routing(**{limit: 100}) as router:
        worker = await router.add()
        worker.delay = 0.3

        outcomes = await asyncio.gather(*(outcome(router, "a" * 40) for _ in range(50)))
        worker.delay = 0.0
        after = await outcome(router, "a" * 40)

    answered = outcomes.count(grpc.StatusCode.OK)
    assert answered == len(worker.requests) - 1 == 6
    assert outcomes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 50 - answered
    assert after is grpc.StatusCode.OK


async def test_a_refusal_says_when_to_come_back() -> None:
    """RetryInfo, and a message with what was asked for and what is allowed."""
    async with routing(model_limit=100) as router:
        worker = await router.add()
        worker.delay = 60
        held = asyncio.ensure_future(router.embed("a" * 300, timeout=None))
        await router.until(lambda: worker.active == 1)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("a" * 100)
        held.cancel()

    details = dict(caught.value.trailing_metadata())[errors.STATUS_DETAILS]
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status_pb2.Status.FromString(details).details)
    assert retry.retry_delay.seconds == 1
    assert "--model-limit allows 100" in str(caught.value.details())


async def test_a_request_that_never_fits_is_too_large() -> None:
    """Coming back would not help, and no RetryInfo says that it would."""
    async with routing(model_limit=100) as router:
        await router.add()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("a" * 1000)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = errors.from_rpc_error(caught.value)
    assert isinstance(error, TooLarge)
    assert error.retry_after is None


def test_limits_are_for_each_key_and_leave_nothing_behind() -> None:
    """One caller's work is not another's, and callers who left take no memory."""
    limit = Limit("--flag", 10)
    limit.take("a", 8)
    limit.take("b", 8)
    with pytest.raises(ResourceExhausted, match="8 are taken"):
        limit.take("a", 8)
    limit.take("a", 2)
    for key, work in (("a", 8), ("a", 2), ("b", 8)):
        limit.give(key, work)

    assert limit._held == {}


def test_a_refused_caller_leaves_nothing_with_the_model() -> None:
    """The model's share is given back when the caller's is used up."""
    admission = Admission(model_limit=100, caller_limit=10)
    admission.take("m", "a", 8)
    with pytest.raises(ResourceExhausted, match="--caller-limit"):
        admission.take("m", "a", 8)
    admission.give("m", "a", 8)

    assert admission.models._held == admission.callers._held == {}


def test_no_limit() -> None:
    """0 turns a limit off."""
    Limit("--flag", 0).take("a", 1e12)
