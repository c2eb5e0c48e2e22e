"""Metrics: exact counts, useful buckets, a bounded number of series, a port of their own."""

from __future__ import annotations

import re
import socket
import urllib.request
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY, generate_latest

from tensorway import errors, metrics
from tensorway.flags import BadFlag
from tensorway.options import ObserveOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import EMBED, EMBED_STREAM, Fake, echo


async def work(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
    """An answer, or an error for the model "bad"."""
    if request.model == "bad":
        raise errors.NotFound("no such model")
    return await echo(request, context)


def seconds(method: str) -> tuple[float, float]:
    """Count and sum of the latency histogram."""
    return tuple(
        REGISTRY.get_sample_value(f"tensorway_rpc_seconds_{name}", {"method": method}) or 0.0
        for name in ("count", "sum")
    )  # type: ignore[return-value]


async def test_counts_are_exact(serving: Any, rpcs: Any) -> None:
    """Ten known calls move the counters by ten, by the time that they are answered."""
    count, total = seconds(EMBED)
    async with serving(*Fake(work).services()) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        for number in range(7):
            await stub.Embed(pb.EmbedRequest(model="good"))
            assert rpcs(EMBED, "OK") == number + 1
        for number in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Embed(pb.EmbedRequest(model="bad"))
            assert rpcs(EMBED, "NOT_FOUND") == number + 1
        request = pb.EmbedStreamRequest(request=pb.EmbedRequest(model="good"))
        answers = stub.EmbedStream(iter([request] * 5))
        assert len([answer async for answer in answers]) == 5
    assert rpcs(EMBED_STREAM, "OK") == 1
    after = seconds(EMBED)
    assert after[0] - count == 10
    assert 0 < after[1] - total < 10


async def test_names_from_callers_make_no_series(serving: Any) -> None:
    """A thousand unknown methods and models leave the number of series as it was."""
    async with serving(*Fake(work).services()) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        await stub.Embed(pb.EmbedRequest(model="good"))
        before = generate_latest().count(b"\ntensorway_")
        for number in range(50):
            await stub.Embed(pb.EmbedRequest(model=f"model-{number}"))
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/tensorway.v1.EmbeddingService/Nope{number}")(b"")
    assert generate_latest().count(b"\ntensorway_") == before


def test_latency_starts_at_a_millisecond() -> None:
    """Sub-second latencies are told apart, and a minute still has a bucket."""
    buckets = metrics.LATENCY_BUCKETS
    assert buckets[0] == 0.001
    assert len([bucket for bucket in buckets if bucket < 1]) >= 8
    assert buckets[-1] >= 60
    assert list(buckets) == sorted(buckets)


def test_the_port_shows_them() -> None:
    """A scrape over HTTP has our metrics in Prometheus' text format."""
    address = metrics.serve(ObserveOptions(metrics_port=0))
    assert address.startswith("127.0.0.1:")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert answer.status == 200
    assert "# TYPE tensorway_rpcs_total counter" in text
    assert "# TYPE tensorway_rpc_seconds histogram" in text
    assert re.search(r"^process_resident_memory_bytes ", text, re.MULTILINE)


def test_pages_beside_the_metrics() -> None:
    """Another page has its own path and type, and hides no metric."""
    page = metrics.Page("application/json", lambda: b"[]")
    address = metrics.serve(ObserveOptions(metrics_port=0), pages={"/workers": page})
    with urllib.request.urlopen(f"http://{address}/workers", timeout=10) as answer:
        assert (answer.headers["Content-Type"], answer.read()) == ("application/json", b"[]")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert b"tensorway_rpcs" in answer.read()


def test_no_port_unless_asked() -> None:
    """Without the flag nothing listens."""
    assert metrics.serve(ObserveOptions()) == ""


def test_a_port_in_use() -> None:
    """The flag is named, not only the system's error."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadFlag, match=f"--metrics-port: cannot listen on 127.0.0.1:{port}: "):
            metrics.serve(ObserveOptions(metrics_port=port))
