"""Traces: one tree over several hops, with and without an exporter."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tensorway import errors, telemetry
from tensorway.channels import Dialer
from tensorway.options import DialOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import EMBED, Fake, echo

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Every span that ends, in order; nothing is left of it after the test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "TRACER", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def ids(span: ReadableSpan) -> tuple[str, str, str]:
    """Trace, span and parent, in hexadecimal."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return (
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        trace.format_span_id(parent.span_id) if parent else "",
    )


def relay(to: grpc.aio.Channel) -> Fake:
    """A service that hands every call on."""

    async def embed(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        metadata = Dialer(DialOptions()).metadata()
        stub = embedding_pb2_grpc.EmbeddingServiceStub(to)
        return await stub.Embed(request, metadata=metadata)

    return Fake(embed)


async def embed(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> pb.EmbedResponse:
    """One call."""
    stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    return await stub.Embed(pb.EmbedRequest(model="m"), metadata=metadata)


async def test_two_hops_give_one_tree(serving: Any, spans: InMemorySpanExporter) -> None:
    """The caller's span is the parent of the first hop's, and that of the second's."""

    async def work(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        with telemetry.model_span("embeddings", request.model) as span:
            telemetry.set_usage(span, input_tokens=7)
        return await echo(request, context)

    async with serving(*Fake(work).services()) as worker, serving(*relay(worker).services()) as to:
        await embed(to, *TRACEPARENT)
    model, second, first = spans.get_finished_spans()
    assert ids(first)[0] == ids(second)[0] == ids(model)[0] == TRACE
    assert ids(first)[2] == PARENT
    assert ids(second)[2] == ids(first)[1]
    assert ids(model)[2] == ids(second)[1]


async def test_spans_follow_the_conventions(serving: Any, spans: InMemorySpanExporter) -> None:
    """Names and attributes are those of OpenTelemetry's RPC and GenAI conventions."""

    async def work(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        with telemetry.model_span("embeddings", "minilm") as span:
            telemetry.set_usage(span, input_tokens=7)
        return await echo(request, context)

    async with serving(*Fake(work).services()) as channel:
        await embed(channel)
    model, server = spans.get_finished_spans()
    assert (model.name, model.kind) == ("embeddings minilm", SpanKind.CLIENT)
    assert dict(model.attributes or {}) == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "tensorway",
        "gen_ai.request.model": "minilm",
        "gen_ai.usage.input_tokens": 7,
    }
    assert (server.name, server.kind) == (EMBED, SpanKind.SERVER)
    assert dict(server.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": EMBED,
        "rpc.response.status_code": "OK",
    }


def test_output_tokens(spans: InMemorySpanExporter) -> None:
    """Generation tells both sides of its usage."""
    with telemetry.model_span("text_completion", "llama") as span:
        telemetry.set_usage(span, input_tokens=5, output_tokens=16)
    (span_,) = spans.get_finished_spans()
    assert (span_.attributes or {})["gen_ai.usage.output_tokens"] == 16


def test_stages_are_inside_their_span(spans: InMemorySpanExporter) -> None:
    """Parts of a span's work are spans too, also what another process did; without it, nothing."""
    with telemetry.stage("nothing"):
        telemetry.past_stage("nothing", time.monotonic() - 2, 1.5)
    with telemetry.model_span("embeddings", "minilm"):
        with telemetry.stage("here"):
            pass
        telemetry.past_stage("there", time.monotonic() - 2, 1.5, **{"tensorway.a": 0.5})
    here, there, model = spans.get_finished_spans()
    assert [span.name for span in (here, there, model)] == ["here", "there", "embeddings minilm"]
    assert ids(here)[2] == ids(there)[2] == ids(model)[1]
    assert (there.end_time or 0) - (there.start_time or 0) == 1_500_000_000
    assert dict(there.attributes or {}) == {"tensorway.a": 0.5}


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.InvalidArgument("theirs"), "INVALID_ARGUMENT", StatusCode.UNSET),
        (errors.Unavailable("ours"), "UNAVAILABLE", StatusCode.ERROR),
        (KeyError("ours"), "INTERNAL", StatusCode.ERROR),
    ],
)
async def test_only_our_errors_mark_a_span(
    serving: Any,
    spans: InMemorySpanExporter,
    error: Exception,
    code: str,
    status: StatusCode,
) -> None:
    """A caller's mistake is told in the span, but is no failure of the server."""

    async def fail(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        raise error

    async with serving(*Fake(fail).services()) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await embed(channel)
    (span,) = spans.get_finished_spans()
    assert (span.attributes or {})["rpc.response.status_code"] == code
    assert span.status.status_code is status


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", "00-0-0-01", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01"],
)
async def test_a_malformed_header_is_ignored(
    serving: Any, spans: InMemorySpanExporter, header: str
) -> None:
    """A bad traceparent starts a trace of our own; the call is answered."""
    async with serving(*Fake().services()) as channel:
        assert (await embed(channel, ("traceparent", header))).model == "m"
    (span,) = spans.get_finished_spans()
    assert span.parent is None


async def test_context_passes_without_an_exporter(serving: Any) -> None:
    """A service that exports nothing does not cut the trace of its neighbours."""
    seen: dict[str, str] = {}

    async def last(request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        seen.update(context.invocation_metadata())
        return await echo(request, context)

    async with serving(*Fake(last).services()) as worker, serving(*relay(worker).services()) as to:
        await embed(to, *TRACEPARENT, ("tracestate", "vendor=1"))
    assert seen["traceparent"] == TRACEPARENT[0][1]
    assert seen["tracestate"] == "vendor=1"


EXPORTER = """
import sys
from tensorway import telemetry
telemetry.setup("test", sys.argv[1])
with telemetry.span("work", {"a": 1}):
    pass
"""


async def test_spans_are_exported_before_the_end(serving: Any) -> None:
    """What a short process did still reaches the collector, which is a real one here."""
    from concurrent import futures

    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    got: list[trace_service_pb2.ExportTraceServiceRequest] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            got.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        command = [sys.executable, "-c", EXPORTER, f"http://127.0.0.1:{port}"]
        subprocess.run(command, check=True, timeout=30)  # noqa: ASYNC221
    finally:
        server.stop(0)
    (spans,) = [spans for request in got for spans in request.resource_spans]
    assert [span.name for scope in spans.scope_spans for span in scope.spans] == ["work"]
    names = {a.key: a.value.string_value for a in spans.resource.attributes}
    assert names["service.name"] == "test"
