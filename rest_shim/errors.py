"""Errors in OpenAI's shape: the shim's only translation."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from http import HTTPStatus
from typing import Any

import grpc
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tensorway import errors

from .token_ids import ADVICE

LOG = logging.getLogger(__name__)

# Places in the gRPC request, as the JSON body calls them.
_INPUT = re.compile(r"\b(?:texts\.texts|tokens\.sequences|texts(?=\[)|sequences(?=\[))")
_TOKEN_ID = re.compile(r"\.ids\[\d+\]$")
_LEFT_OUT = re.compile(r"(?<=\])\.ids\b|\bsampling_params\.")
_TASK = re.compile(r"\bTASK_([A-Z_]+)")


def to_domain(raised: BaseException) -> errors.TensorwayError:
    """What went wrong, as a domain error that tells no internals."""
    match raised:
        case errors.TensorwayError():
            return raised
        case grpc.aio.AioRpcError():
            return _from_rpc(raised)
        case TimeoutError():
            return errors.DeadlineExceeded("the request took too long")
        case asyncio.CancelledError():
            return errors.Unavailable("the server is shutting down")
        case _:
            LOG.error("request failed", exc_info=raised)
            return errors.Internal("internal error")


def to_body(error: errors.TensorwayError) -> dict[str, dict[str, str | None]]:
    """The error in OpenAI's shape."""
    field = "model" if isinstance(error, errors.NotFound) else error.field
    advice = f". Token ids must be the model's own; {ADVICE}" if _TOKEN_ID.search(field) else ""
    return _body(
        errors.http_status(error),
        _in_json_terms(error.message) + advice,
        _in_json_terms(field) or None,
        error.reason.lower(),
    )


def to_response(error: errors.TensorwayError) -> Response:
    """The error as an HTTP answer."""
    status, headers = errors.http_status(error), {}
    if error.retry_after is not None or status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after or 0)))
    if isinstance(error, errors.Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(to_body(error)), status, headers, media_type="application/json")


async def on_http_exception(request: Request, raised: Exception) -> Response:
    """Starlette's own refusals: no such route, or another method."""
    assert isinstance(raised, HTTPException)
    reason = HTTPStatus(raised.status_code).phrase
    message = f"{request.method} {request.url.path}: {reason.lower()}"
    code = reason.lower().replace(" ", "_")
    body = orjson.dumps(_body(raised.status_code, message, None, code))
    headers = dict(raised.headers or {})
    return Response(body, raised.status_code, headers, media_type="application/json")


def _body(
    status: int, message: str, param: str | None, code: str
) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": _kind(status), "param": param, "code": code}}


def _kind(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    client = status < HTTPStatus.INTERNAL_SERVER_ERROR
    return "invalid_request_error" if client else "server_error"


def _from_rpc(raised: grpc.aio.AioRpcError) -> errors.TensorwayError:
    error = errors.from_rpc_error(raised)
    trailing: Any = raised.trailing_metadata() or ()
    said_by_us = errors.STATUS_DETAILS in dict(trailing)
    if isinstance(error, errors.Internal):
        LOG.error("call failed: %s: %s", raised.code(), raised.details())
        return errors.Internal("internal error")
    # gRPC's own text about a lost connection tells addresses inside.
    if isinstance(error, errors.Unavailable) and not said_by_us:
        LOG.warning("router: %s", raised.details())
        return errors.Unavailable("the router cannot be reached")
    return error


def _in_json_terms(text: str) -> str:
    text = _LEFT_OUT.sub("", _INPUT.sub("input", text))
    return _TASK.sub(lambda found: found[1].lower(), text)
