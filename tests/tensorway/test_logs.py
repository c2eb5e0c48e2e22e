"""Log lines as text and as JSON, with the ids of the call they belong to."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tensorway import logs, telemetry
from tensorway.channels import Dialer
from tensorway.options import DialOptions, ObserveOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import Fake, echo

LOG = logging.getLogger("a.service")
TRACE = "0af7651916cd43dd8448eb211c80319c"
METADATA = (("x-request-id", "mine-7"), ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave the log as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


async def talk(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
    """A call that logs."""
    LOG.info("three texts, %d tokens", 7)
    return await echo(request, context)


async def call(serving: Any, fake: Fake, **options: Any) -> None:
    """One call with the metadata."""
    async with serving(*fake.services()) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        await stub.Embed(pb.EmbedRequest(), **options)


async def test_text(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for people has the caller's request id and the trace id, on standard error."""
    logs.setup(ObserveOptions())
    await call(serving, Fake(talk), metadata=METADATA)
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if "three texts" in line]
    assert line.endswith(f" INFO a.service [mine-7 {TRACE}] three texts, 7 tokens")
    assert out == ""


async def test_malformed_trace_headers_are_not_logged(
    serving: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A caller cannot fill the log with headers that nobody can read."""
    logs.setup(ObserveOptions())
    bad = (("tracestate", "=,;"), ("baggage", "=,;"), ("traceparent", "00-zz"))
    await call(serving, Fake(talk), metadata=(METADATA[1], *bad[:2]))
    await call(serving, Fake(talk), metadata=bad)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "three texts" in line]) == 2
    assert not [line for line in lines if "WARNING" in line]


def test_a_request_id_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What would break or hide a line is written escaped."""
    logs.setup(ObserveOptions())
    token = logs.request_id.set("mine\n2026-01-01 ERROR forged\x1b[2K")
    try:
        LOG.info("said")
    finally:
        logs.request_id.reset(token)
    (line,) = capsys.readouterr().err.splitlines()
    assert r"['mine\n2026-01-01 ERROR forged\x1b[2K' -] said" in line


async def test_json(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for machines is one JSON object with the same."""
    logs.setup(ObserveOptions(log_format="json"))
    await call(serving, Fake(talk), metadata=METADATA)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["message"] == "three texts, 7 tokens"]
    assert line.pop("asctime")
    assert line == {
        "levelname": "INFO",
        "name": "a.service",
        "request_id": "mine-7",
        "trace_id": TRACE,
        "message": "three texts, 7 tokens",
    }


def test_outside_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no id to show when a service starts."""
    logs.setup(ObserveOptions())
    LOG.warning("starting")
    assert "WARNING a.service [- -] starting" in capsys.readouterr().err


def test_an_error_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback stays inside its line."""
    logs.setup(ObserveOptions(log_format="json"))
    try:
        _ = {}["key"]
    except KeyError:
        LOG.exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError: 'key'" in json.loads(line)["exc_info"]


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """Less severe messages than asked for are left out."""
    logs.setup(ObserveOptions(log_level="warning"))
    LOG.info("quiet")
    LOG.warning("loud")
    err = capsys.readouterr().err
    assert "loud" in err
    assert "quiet" not in err


async def test_a_call_without_an_id_gets_one(
    serving: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every call can be told from every other."""
    logs.setup(ObserveOptions())
    fake = Fake(talk)
    for _ in range(2):
        await call(serving, fake)
    ids = re.findall(r"\[([0-9a-f]{32}) -\] three texts", capsys.readouterr().err)
    assert len(set(ids)) == 2


async def test_the_id_goes_on_to_the_next_hop(serving: Any) -> None:
    """One id names a request in the logs of every service, cut to 128 characters."""
    sent: list[dict[str, str]] = []

    async def relay(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        sent.append(dict(Dialer(DialOptions()).metadata()))
        return await echo(request, context)

    await call(serving, Fake(relay), metadata=METADATA)
    await call(serving, Fake(relay), metadata=(("x-request-id", "x" * 1000),))
    assert [headers["x-request-id"] for headers in sent] == ["mine-7", "x" * 128]
    assert "x-request-id" not in dict(Dialer(DialOptions()).metadata())
    assert telemetry.headers() == {}
