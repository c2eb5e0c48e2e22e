"""What holds for every request: id, trace, tokens, limits, deadline, disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from rest_shim.options import RestOptions
from tensorway.options import DialOptions, ListenOptions
from tests.rest_shim.conftest import Shim, Shims
from tests.rest_shim.fakes import MODEL

TRACE = "0af7651916cd43dd8448eb211c80319c"
MIB = 1024 * 1024


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with two tokens."""
    path = tmp_path / "tokens"
    path.write_text("sk-one\nsk-two\n")
    return path


def bearer(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"authorization": f"Bearer {token}"}


async def test_request_id_is_echoed_and_reaches_the_router(shim: Shim):
    """The caller's id is in the answer and in the next hop's metadata."""
    answer = await shim.http.post(
        "/v1/embeddings", json={"model": MODEL, "input": "x"}, headers={"x-request-id": "abc-1"}
    )
    assert answer.headers.get_list("x-request-id") == ["abc-1"]
    assert shim.router.metadata["x-request-id"] == "abc-1"


@pytest.mark.parametrize("given", [b"", b"caf\xe9", b"tab\there"])
async def test_unusable_request_id_is_replaced(shim: Shim, given: bytes):
    """An id that gRPC metadata cannot carry does not fail the request."""
    answer = await shim.http.get("/v1/models", headers=[(b"x-request-id", given)])
    assert answer.status_code == 200
    assert len(answer.headers["x-request-id"]) == 32


async def test_errors_carry_the_request_id(shim: Shim):
    """An error, too, can be found in the log by its id."""
    answer = await shim.http.get("/nowhere", headers={"x-request-id": "abc-2"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (404, "abc-2")


async def test_trace_context_reaches_the_router(shim: Shim):
    """The caller's trace goes on, and a malformed header is ignored."""
    for header, trace in ((f"00-{TRACE}-b7ad6b7169203331-01", TRACE), ("00-zz-1-01", None)):
        await shim.http.post(
            "/v1/embeddings",
            json={"model": MODEL, "input": "x"},
            headers={"traceparent": header},
        )
        sent = shim.router.metadata.get("traceparent", "")
        assert (trace in sent) if trace else (sent == "")


async def test_token_is_required_where_one_is_set(shims: Shims, tokens: Path):
    """Without a known token /v1 answers 401; probes and metrics stay open."""
    async with shims(RestOptions(token_file=tokens)) as shim:
        for headers in ({}, bearer("sk-three"), {"authorization": "sk-one"}):
            refused = await shim.http.get("/v1/models", headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                401,
                "unauthenticated",
            )
            assert refused.headers["www-authenticate"] == "Bearer"
        assert (await shim.http.get("/v1/models", headers=bearer("sk-two"))).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await shim.http.get(path)).status_code == 200


async def test_callers_token_passes_to_a_router_that_wants_one(shims: Shims, tokens: Path):
    """The shim needs no token of its own: the router checks the caller's."""
    async with shims(router_options=ListenOptions(token_file=tokens)) as shim:
        assert (await shim.http.get("/v1/models", headers=bearer("sk-one"))).status_code == 200
        refused = await shim.http.get("/v1/models", headers=bearer("sk-wrong"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthenticated")


async def test_shims_own_token_replaces_the_callers(shims: Shims, tokens: Path):
    """With --dial-token-file the router sees that token only."""
    dial = DialOptions(dial_token_file=tokens)
    async with shims(dial=dial) as shim:
        shim.http.headers.update(bearer("sk-caller"))
        await shim.embed(input="x")
        assert shim.router.metadata["authorization"] == "Bearer sk-one"


async def test_token_that_grpc_cannot_carry_stays_here(shim: Shim):
    """An odd authorization header is not forwarded and breaks nothing."""
    answer = await shim.http.get("/v1/models", headers=[(b"authorization", b"Bearer \xe9")])
    assert answer.status_code == 200


async def test_body_over_the_limit_is_refused(shims: Shims):
    """A declared and an undeclared body over the limit are both 413 that names the option."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * MIB

    async with shims(RestOptions(max_body_mib=1)) as shim:
        for content in (b"x" * (MIB + 1), chunks()):
            answer = await shim.http.post("/v1/embeddings", content=content)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (413, "too_large")
            assert "--max-body-mib" in error["message"]
            assert "retry-after" not in answer.headers
        assert (await shim.embed(input="x")).status_code == 200


async def test_requests_over_the_bound_are_refused_at_once(shims: Shims):
    """Over --max-concurrency is 429 with Retry-After; probes answer; it recovers."""
    async with shims(RestOptions(max_concurrency=2)) as shim:
        shim.router.seconds = 0.5
        answers = await asyncio.gather(*(shim.embed(input=i) for i in ("a", ["a"], "b", ["b"])))
        refused = [a for a in answers if a.status_code == 429]
        assert len(refused) == 2
        for answer in refused:
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["type"] == "rate_limit_error"
        assert (await shim.embed(input="again")).status_code == 200


async def test_probes_answer_while_all_permits_are_taken(shims: Shims):
    """An orchestrator must not kill a shim because it is busy."""
    async with shims(RestOptions(max_concurrency=1)) as shim:
        shim.router.seconds = 0.5
        busy = asyncio.create_task(shim.embed(input="x"))
        await shim.router.started.wait()
        assert (await shim.http.get("/healthz")).status_code == 200
        assert (await shim.http.get("/v1/models")).status_code == 429
        assert (await busy).status_code == 200


async def test_bodies_in_flight_are_bounded(shims: Shims):
    """All bodies together over --max-buffered-mib is 429, and the bytes are given back."""
    async with shims(RestOptions(max_buffered_mib=1)) as shim:
        shim.router.seconds = 0.5
        text = "x" * (600 * 1024)
        answers = await asyncio.gather(*(shim.embed(input=text) for _ in range(2)))
        assert sorted(a.status_code for a in answers) == [200, 429]
        assert (await shim.embed(input=text)).status_code == 200


async def test_deadline_reaches_the_router_and_ends_the_request(shims: Shims):
    """A request without an answer in time is 504, and the router knew the deadline."""
    async with shims(RestOptions(timeout=0.3)) as shim:
        shim.router.seconds = 30
        answer = await shim.embed(input="x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert 0 < shim.router.remaining < 1
        await asyncio.wait_for(shim.router.cancelled.wait(), 5)


async def test_body_that_never_ends_is_given_up(shims: Shims):
    """A client that stops sending does not hold its permit for ever."""
    async with shims(RestOptions(timeout=0.3, max_concurrency=1)) as shim:
        host, port = shim.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert b" 504 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await writer.wait_closed()
        assert (await shim.embed(input="x")).status_code == 200


async def test_disconnect_cancels_the_call(shim: Shim):
    """When the client leaves, the router's call is cancelled, and is counted as 499."""
    shim.router.seconds = 30
    with pytest.raises(httpx.ReadTimeout):
        await shim.http.post(
            "/v1/embeddings", json={"model": MODEL, "input": "x"}, timeout=httpx.Timeout(0.5)
        )
    await asyncio.wait_for(shim.router.cancelled.wait(), 1)
    shim.router.seconds = 0
    assert (await shim.embed(input="x")).status_code == 200
    counts = (await shim.http.get("/metrics")).text
    assert 'tensorway_rest_requests_total{route="/v1/embeddings",status="499"}' in counts


async def test_unknown_paths_make_no_series(shim: Shim):
    """However many paths are tried, they count under one name."""
    for index in range(5):
        await shim.http.get(f"/v1/unknown-{index}")
        await shim.http.get(f"/v1/models/unknown-{index}")
    counts = (await shim.http.get("/metrics")).text
    assert "unknown-" not in counts
    assert 'route="none",status="404"' in counts
