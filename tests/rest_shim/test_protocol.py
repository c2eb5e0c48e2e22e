"""Connections: upgrades are ignored, heads are bounded, and early answers end them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rest_shim import protocol
from rest_shim.options import RestOptions
from tests.rest_shim.conftest import Shim, Shims
from tests.rest_shim.fakes import MODEL

POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"model": "%b", "input": "x"}' % MODEL.encode()


@asynccontextmanager
async def connected(
    shim: Shim,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection to the shim."""
    host, port = shim.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes before the shim closes the connection."""
    async with asyncio.timeout(5):
        return await reader.read()


@pytest.mark.parametrize(
    "offer",
    [
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
        b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    ],
    ids=["h2c", "websocket"],
)
@pytest.mark.parametrize("pieces", [1, 40], ids=["whole", "in pieces"])
async def test_upgrade_is_ignored(
    shim: Shim, offer: bytes, pieces: int, caplog: pytest.LogCaptureFixture
):
    """A request that offers an upgrade is answered like any other, also behind another one."""
    length = b"content-length: %d\r\n" % len(BODY)
    chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    last = POST + offer.replace(b": Upgrade", b": close, Upgrade") + chunked
    sent = (POST + offer + length + b"\r\n" + BODY) * 2 + GET + offer + b"\r\n" + last
    async with connected(shim) as (reader, writer):
        size = -(-len(sent) // pieces)
        for start in range(0, len(sent), size):
            writer.write(sent[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        answer = await until_closed(reader)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 4
    assert answer.count(b'"embedding"') >= 3
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("sent", [b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"no HTTP\r\n\r\n"])
async def test_what_cannot_be_read_is_refused(shim: Shim, sent: bytes):
    """Tunnels, and bytes that are no HTTP, are 400 and end the connection."""
    async with connected(shim) as (reader, writer):
        writer.write(sent)
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 400 ")


async def test_http2_is_told_what_to_do(shim: Shim):
    """A client that speaks HTTP/2 without asking reads in HTTP/2 that it should not."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    async with connected(shim) as (reader, writer):
        writer.write(preface + b"\0\0\0\4\0\0\0\0\0")
        answer = await until_closed(reader)
    # An empty frame of settings; then GOAWAY with HTTP_1_1_REQUIRED and the words.
    settings, goaway = answer[:9], answer[9:]
    assert settings == b"\0\0\0\4\0\0\0\0\0"
    assert goaway[3] == 7
    assert int.from_bytes(goaway[:3]) == len(goaway) - 9
    assert goaway[9:17] == b"\0\0\0\0\0\0\0\x0d"
    assert goaway.endswith(b"this server speaks HTTP/1.1")


@pytest.mark.parametrize(
    "start",
    [b"GET /", GET + b"x: ", POST + b"transfer-encoding: chunked\r\n\r\n1;"],
    ids=["path", "header", "chunk"],
)
async def test_endless_head_is_cut(shim: Shim, start: bytes):
    """No more than 64 KiB are taken of what has no end."""
    async with connected(shim) as (_, writer):
        writer.write(start)
        with pytest.raises(ConnectionError):
            await flood(writer)


async def flood(writer: asyncio.StreamWriter) -> None:
    """Send 4 MiB, unless the connection is closed on the way."""
    for _ in range(64):
        writer.write(b"a" * protocol._HEAD_BYTES)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_large_head_is_told(shim: Shim):
    """Just over the bound is status 431; just under it is served."""
    async with connected(shim) as (reader, writer):
        writer.write(GET + b"x: " + b"a" * protocol._HEAD_BYTES)
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 431 ")
    large = {"x": "a" * (protocol._HEAD_BYTES - 1024)}
    assert (await shim.http.get("/healthz", headers=large)).status_code == 200


@pytest.mark.parametrize(
    ("before", "start"),
    [(b"", b"\r\n"), (b"", b"PO"), (b"", POST), (GET + b"\r\n", b"PO")],
    ids=["nothing", "method", "header", "second"],
)
async def test_slow_head_is_given_up(
    shim: Shim, before: bytes, start: bytes, monkeypatch: pytest.MonkeyPatch
):
    """A head that does not end is not waited for, be it of a first or a later request."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    async with connected(shim) as (reader, writer):
        writer.write(before + start)
        assert (await until_closed(reader)).count(b" 200 ") == bool(before)


async def test_slow_head_does_not_end_an_answer(shim: Shim, monkeypatch: pytest.MonkeyPatch):
    """The request before it is answered first."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    shim.router.seconds = 0.5
    async with connected(shim) as (reader, writer):
        writer.write(POST + b"content-length: %d\r\n\r\n%bPO" % (len(BODY), BODY))
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("length", "status"), [(99999999, b"413"), (9, b"504")])
async def test_early_answer_ends_the_connection(
    shims: Shims, length: int, status: bytes, monkeypatch: pytest.MonkeyPatch
):
    """After a body that is too large or too slow the connection is closed, not held."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    async with shims(RestOptions(timeout=0.3)) as shim, connected(shim) as (reader, writer):
        writer.write(POST + b"content-length: %d\r\n\r\n{" % length)
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 %b " % status)


async def test_client_who_does_not_read_is_cut(shim: Shim, monkeypatch: pytest.MonkeyPatch):
    """An answer that nobody reads is given up, and what it held is free again."""
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.2)
    shim.router.width = 512
    body = json.dumps({"model": MODEL, "input": [str(number) for number in range(2048)]}).encode()
    async with connected(shim) as (reader, writer):
        # What is read ahead here must not be all of it.
        reader._transport.pause_reading()
        writer.write(POST + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        async with asyncio.timeout(60):
            await shim.router.started.wait()
            while await in_flight(shim):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def in_flight(shim: Shim) -> float:
    """Requests that are being worked on."""
    text = (await shim.http.get("/metrics")).text
    return float(re.findall(r"^tensorway_rest_requests_in_flight (\S+)$", text, re.MULTILINE)[0])


async def test_connection_goes_on_when_the_body_ends(shims: Shims):
    """A refused body that comes whole leaves the connection usable."""
    async with shims(RestOptions(max_body_mib=1)) as shim, connected(shim) as (reader, writer):
        size = 2 * 1024 * 1024
        writer.write(POST + b"content-length: %d\r\n\r\n" % size)
        assert b" 413 " in await reader.readline()
        writer.write(b"x" * size + GET + b"connection: close\r\n\r\n")
        assert b"HTTP/1.1 200 " in await until_closed(reader)
