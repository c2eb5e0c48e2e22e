"""Domain errors, raised anywhere, translated once at each edge.

    TensorwayError
    ├── InvalidArgument      the caller's mistake, with the field it is in
    ├── NotFound             no such model
    ├── AlreadyExists        an endpoint that serves another model
    ├── FailedPrecondition   the model cannot do that
    ├── Unauthenticated      no token, or a wrong one
    ├── ResourceExhausted    over a limit; come back later
    │   └── TooLarge         over a limit; coming back does not help
    ├── Unavailable          nobody can answer now; safe to try elsewhere
    ├── DeadlineExceeded     time is up
    ├── Cancelled            the caller left
    ├── Unimplemented        no such RPC
    └── Internal             our mistake; the cause stays in the log

``GRPC_CODES`` and ``HTTP_STATUSES`` are the only two translations.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "tensorway"
STATUS_DETAILS = "grpc-status-details-bin"


class TensorwayError(Exception):
    """Base of all errors that a caller may see; ``str()`` is what they read."""

    reason = "UNKNOWN"

    def __init__(self, message: str, *, reason: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.reason
        self.field = field
        self.retry_after: float | None = None


class InvalidArgument(TensorwayError):
    """A value that the caller must change; ``field`` is its path in the request."""

    reason = "INVALID_ARGUMENT"


class NotFound(TensorwayError):
    """No model of that name."""

    reason = "MODEL_NOT_FOUND"


class AlreadyExists(TensorwayError):
    """The endpoint is taken by another model."""

    reason = "ENDPOINT_TAKEN"


class FailedPrecondition(TensorwayError):
    """The model does not support what was asked."""

    reason = "NOT_SUPPORTED"


class Unauthenticated(TensorwayError):
    """The bearer token is missing or wrong."""

    reason = "UNAUTHENTICATED"


class ResourceExhausted(TensorwayError):
    """A limit on work was reached; ``retry_after`` is in seconds."""

    reason = "OVERLOADED"

    def __init__(
        self, message: str, *, retry_after: float | None = None, reason: str = "", field: str = ""
    ) -> None:
        super().__init__(message, reason=reason, field=field)
        self.retry_after = retry_after


class TooLarge(ResourceExhausted):
    """One message or request is larger than is allowed at all."""

    reason = "TOO_LARGE"


class Unavailable(TensorwayError):
    """Nobody can answer now."""

    reason = "UNAVAILABLE"


class DeadlineExceeded(TensorwayError):
    """The deadline passed."""

    reason = "DEADLINE_EXCEEDED"


class Cancelled(TensorwayError):
    """The caller cancelled."""

    reason = "CANCELLED"


class Unimplemented(TensorwayError):
    """The server does not have that RPC."""

    reason = "UNIMPLEMENTED"


class Internal(TensorwayError):
    """Our mistake."""

    reason = "INTERNAL"


GRPC_CODES: dict[type[TensorwayError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    Internal: grpc.StatusCode.INTERNAL,
}

# 499 is nginx's status for a client that closed the connection.
HTTP_STATUSES: dict[type[TensorwayError], int] = {
    InvalidArgument: 400,
    NotFound: 404,
    AlreadyExists: 409,
    FailedPrecondition: 400,
    Unauthenticated: 401,
    TooLarge: 413,
    ResourceExhausted: 429,
    Unavailable: 503,
    DeadlineExceeded: 504,
    Cancelled: 499,
    Unimplemented: 501,
    Internal: 500,
}

_BY_CODE = {code: error for error, code in GRPC_CODES.items() if error is not TooLarge}
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# An error travels three times in metadata, percent-encoded and as base64; gRPC clients
# drop metadata over 8 KiB and would show RESOURCE_EXHAUSTED instead of the error.
_MESSAGE_BYTES = 1024


def grpc_code(error: TensorwayError) -> grpc.StatusCode:
    """The gRPC code of an error, by the nearest class in the table."""
    return GRPC_CODES[_kind(error)]


def http_status(error: TensorwayError) -> int:
    """The HTTP status of an error, by the nearest class in the table."""
    return HTTP_STATUSES[_kind(error)]


def to_status(error: TensorwayError) -> status_pb2.Status:
    """The error as google.rpc.Status, with ErrorInfo and what else it knows."""
    message = _clip(error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    details = [_pack(info)]
    if error.field:
        info.metadata["field"] = error.field
        details[0] = _pack(info)
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message
        )
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after * 1000))
        details.append(_pack(retry))
    code: int = grpc_code(error).value[0]
    return status_pb2.Status(code=code, message=message, details=details)


def from_status(status: status_pb2.Status) -> TensorwayError:
    """The inverse of :func:`to_status`; also reads statuses of other servers."""
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in status.details:
        for message in (info, bad_request, retry):
            with suppress(DecodeError):
                detail.Unpack(message)
    kind = _BY_CODE.get(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), Internal)
    if kind is ResourceExhausted and (
        info.reason == TooLarge.reason or "message larger than max" in status.message
    ):
        kind = TooLarge
    error = kind(status.message)
    error.reason = info.reason or error.reason
    error.field = next((v.field for v in bad_request.field_violations), "")
    if retry.HasField("retry_delay"):
        error.retry_after = retry.retry_delay.ToMilliseconds() / 1000
    return error


def from_rpc_error(error: grpc.aio.AioRpcError) -> TensorwayError:
    """What a failed client call says, as a domain error."""
    trailing: Any = error.trailing_metadata() or ()
    code: int = error.code().value[0]
    status = status_pb2.Status(code=code, message=error.details() or "")
    # Details of foreign servers may be damaged, or speak of another error.
    with suppress(DecodeError):
        detailed = status_pb2.Status.FromString(dict(trailing).get(STATUS_DETAILS, b""))
        status = detailed if detailed.code == code else status
    return from_status(status)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: TensorwayError) -> NoReturn:
    """End a call with the error; always raises."""
    status = to_status(error)
    details = ((STATUS_DETAILS, status.SerializeToString()),)
    await context.abort(grpc_code(error), status.message, details)


def _kind(error: TensorwayError) -> type[TensorwayError]:
    return next((kind for kind in type(error).__mro__ if kind in GRPC_CODES), Internal)


def _clip(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= _MESSAGE_BYTES:
        return data.decode()
    return data[:_MESSAGE_BYTES].decode(errors="ignore") + "..."


def _pack(message: object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed
