"""The two tables of errors, and errors on their way through metadata and back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from tensorway import errors
from tensorway.errors import TensorwayError

KINDS = tuple(errors.GRPC_CODES)


def subclasses(kind: type[TensorwayError]) -> set[type[TensorwayError]]:
    """The kinds of error below one that are declared in the tree itself."""
    below = {sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__}
    return below.union(*(subclasses(sub) for sub in below))


def rpc_error(
    code: grpc.StatusCode, details: str | None, trailing: tuple[tuple[str, Any], ...] = ()
) -> grpc.aio.AioRpcError:
    """What a client call raises."""
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
    )


def test_every_error_is_in_both_tables() -> None:
    """A new error cannot be forgotten in a translation."""
    assert subclasses(TensorwayError) == set(errors.GRPC_CODES) == set(errors.HTTP_STATUSES)


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        (errors.InvalidArgument, "INVALID_ARGUMENT", 400),
        (errors.NotFound, "NOT_FOUND", 404),
        (errors.AlreadyExists, "ALREADY_EXISTS", 409),
        (errors.FailedPrecondition, "FAILED_PRECONDITION", 400),
        (errors.Unauthenticated, "UNAUTHENTICATED", 401),
        (errors.TooLarge, "RESOURCE_EXHAUSTED", 413),
        (errors.ResourceExhausted, "RESOURCE_EXHAUSTED", 429),
        (errors.Unavailable, "UNAVAILABLE", 503),
        (errors.DeadlineExceeded, "DEADLINE_EXCEEDED", 504),
        (errors.Cancelled, "CANCELLED", 499),
        (errors.Unimplemented, "UNIMPLEMENTED", 501),
        (errors.Internal, "INTERNAL", 500),
    ],
)
def test_codes_and_statuses(kind: type[TensorwayError], code: str, status: int) -> None:
    """The tables say what docs/contract.md says."""
    error = kind("wrong")
    assert errors.grpc_code(error).name == code
    assert errors.http_status(error) == status


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: type[TensorwayError]) -> None:
    """An error read from a status is the error that was written."""
    error = kind("input 3: expected text, got nothing")
    error.field, error.reason, error.retry_after = "texts[3]", "SPECIAL", 1.5
    if kind is errors.TooLarge:
        error.reason = kind.reason
    read = errors.from_status(errors.to_status(error))
    assert type(read) is kind
    assert vars(read) == vars(error)


def test_details_are_googles() -> None:
    """Clients of any language find BadRequest, ErrorInfo and RetryInfo."""
    error = errors.InvalidArgument("dimensions: too many", field="dimensions")
    error.retry_after = 0.25
    info, bad, retry = errors.to_status(error).details
    assert error_details_pb2.ErrorInfo.FromString(info.value) == error_details_pb2.ErrorInfo(
        reason="INVALID_ARGUMENT", domain="tensorway", metadata={"field": "dimensions"}
    )
    violation = error_details_pb2.BadRequest.FromString(bad.value).field_violations[0]
    assert (violation.field, violation.description) == ("dimensions", error.message)
    delay = error_details_pb2.RetryInfo.FromString(retry.value).retry_delay
    assert delay.ToMilliseconds() == 250


@given(st.text(max_size=3000))
def test_any_message_fits_into_metadata(message: str) -> None:
    """A long message, in whatever script, is cut so that clients still get the error."""
    status = errors.to_status(errors.InvalidArgument(message, field="texts[0]"))
    # Non-ASCII bytes take three characters in grpc-message; details travel as base64.
    sent = 3 * len(status.message.encode()) + len(status.SerializeToString()) * 4 / 3
    assert sent < 8192 - 512
    assert (
        len(message.encode(errors="replace")) > 1024
        or status.message == message.encode(errors="replace").decode()
    )


def test_subclasses_are_answered_like_their_parent() -> None:
    """A service may refine an error without a line in the tables."""

    class EngineDead(errors.Unavailable):
        """An error of a service's own."""

    error = EngineDead("the engine died")
    assert errors.grpc_code(error) is grpc.StatusCode.UNAVAILABLE
    assert errors.http_status(error) == 503
    assert errors.grpc_code(TensorwayError("?")) is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.value[0]])
def test_every_code_of_an_upstream_is_understood(code: grpc.StatusCode) -> None:
    """Codes that we never send are our mistake, not a crash."""
    error = errors.from_rpc_error(rpc_error(code, "what they said"))
    assert error.message == "what they said"
    expected = code if code in errors.GRPC_CODES.values() else grpc.StatusCode.INTERNAL
    assert errors.grpc_code(error) is expected


@pytest.mark.parametrize(
    "trailing",
    [
        pytest.param(b"\xff\xff\xff", id="no-status"),
        pytest.param(status_pb2.Status(code=99).SerializeToString(), id="unknown-code"),
        pytest.param(status_pb2.Status(code=5, message="b").SerializeToString(), id="other-code"),
        pytest.param(
            status_pb2.Status(
                code=14,
                message="a",
                details=[
                    any_pb2.Any(
                        type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\xff\xff"
                    )
                ],
            ).SerializeToString(),
            id="damaged-detail",
        ),
    ],
)
def test_damaged_details_are_ignored(trailing: bytes) -> None:
    """A foreign server's bad details do not hide what it said."""
    raised = rpc_error(grpc.StatusCode.UNAVAILABLE, "a", ((errors.STATUS_DETAILS, trailing),))
    error = errors.from_rpc_error(raised)
    assert type(error) is errors.Unavailable
    assert error.message == "a"


def test_grpcs_own_size_error_is_too_large() -> None:
    """A large message is refused by gRPC without details; coming back does not help then."""
    text = "SERVER: Received message larger than max (5000000 vs. 4194304)"
    error = errors.from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert type(error) is errors.TooLarge
    assert error.reason == "TOO_LARGE"


def test_no_details_at_all() -> None:
    """An upstream may say nothing."""
    assert errors.from_rpc_error(rpc_error(grpc.StatusCode.NOT_FOUND, None)).message == ""
