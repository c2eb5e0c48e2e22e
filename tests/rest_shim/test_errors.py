"""Errors of the router as HTTP: one table, OpenAI's shape, no internals."""

from __future__ import annotations

import logging
import socket

import grpc
import httpx
import pytest

from rest_shim import upstream
from rest_shim.options import RestOptions
from tensorway import errors
from tensorway.options import DialOptions
from tests.rest_shim.conftest import Shim, Shims, served

OVERLOADED = errors.ResourceExhausted("too much", retry_after=2.5)

# Error, status, type, code.
TABLE = [
    (errors.InvalidArgument("x"), 400, "invalid_request_error", "invalid_argument"),
    (errors.FailedPrecondition("x"), 400, "invalid_request_error", "not_supported"),
    (errors.Unauthenticated("x"), 401, "invalid_request_error", "unauthenticated"),
    (errors.NotFound("x"), 404, "invalid_request_error", "model_not_found"),
    (errors.AlreadyExists("x"), 409, "invalid_request_error", "endpoint_taken"),
    (errors.TooLarge("x"), 413, "invalid_request_error", "too_large"),
    (OVERLOADED, 429, "rate_limit_error", "overloaded"),
    (errors.Internal("x"), 500, "server_error", "internal"),
    (errors.Unimplemented("x"), 501, "server_error", "unimplemented"),
    (errors.Unavailable("x"), 503, "server_error", "unavailable"),
    (errors.DeadlineExceeded("x"), 504, "server_error", "deadline_exceeded"),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"), TABLE, ids=[type(row[0]).__name__ for row in TABLE]
)
async def test_table(shim: Shim, error: errors.TensorwayError, status: int, kind: str, code: str):
    """Every domain error has its status, type and code."""
    shim.router.error = error
    answer = await shim.embed(input="x")
    body = answer.json()["error"]
    assert (answer.status_code, body["type"], body["code"]) == (status, kind, code)


async def test_retry_after_is_whole_seconds_rounded_up(shim: Shim):
    """The header is in seconds, never less than the router asked for."""
    shim.router.error = OVERLOADED
    assert (await shim.embed(input="x")).headers["retry-after"] == "3"


async def test_tasks_have_their_names_here(shim: Shim):
    """What the contract calls TASK_CLASSIFY is told as /v1/models tells it."""
    shim.router.error = errors.FailedPrecondition("model 'm' does not support TASK_TOKEN_EMBED")
    message = (await shim.embed(input="x")).json()["error"]["message"]
    assert message == "model 'm' does not support token_embed"


async def test_internals_stay_in_the_log(shim: Shim, caplog: pytest.LogCaptureFixture):
    """A bug behind the router is status 500 that says nothing else."""
    shim.router.error = RuntimeError("secret path /srv/model")
    with caplog.at_level(logging.ERROR):
        answer = await shim.embed(input="x")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error"


async def test_our_own_bug_is_logged_and_hidden(
    shim: Shim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A bug in the shim is status 500 in the same shape, with its traceback in the log."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("rest_shim.embeddings.to_message", broken)
    answer = await shim.embed(input="x")
    assert answer.json()["error"]["message"] == "internal error"
    assert answer.json()["error"]["code"] == "internal"
    assert "ZeroDivisionError" in caplog.text


async def test_lost_router_tells_no_addresses(shims: Shims):
    """A router that cannot be reached is 503 without gRPC's own words."""
    async with shims(RestOptions()) as shim:
        await shim.lose_router()
        for answer in (await shim.embed(input="x"), await shim.http.get("/readyz")):
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "the router cannot be reached"
        assert (await shim.http.get("/healthz")).status_code == 200


async def test_silent_router_is_not_ready(monkeypatch: pytest.MonkeyPatch):
    """Readiness is 503, not 504, when the router takes connections and says nothing."""
    monkeypatch.setattr(upstream, "_PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rest = RestOptions(port=0, router=f"127.0.0.1:{silent.getsockname()[1]}")
        async with served(rest, DialOptions()) as url, httpx.AsyncClient(base_url=url) as http:
            answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


async def test_answer_over_the_message_limit_is_413(shims: Shims):
    """An answer larger than --dial-max-message-mib says both sizes, and is no 500."""
    async with shims(dial=DialOptions(dial_max_message_mib=1)) as shim:
        shim.router.width = 4096
        answer = await shim.embed(input=[f"text {i}" for i in range(100)])
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert str(1024 * 1024) in answer.json()["error"]["message"]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS])
async def test_codes_outside_the_table_are_500(shim: Shim, code: grpc.StatusCode):
    """What another server may say is our internal error."""
    shim.router.abort = code
    assert (await shim.embed(input="x")).status_code == 500
