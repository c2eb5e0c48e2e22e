"""OpenTelemetry: W3C trace context across every hop, spans by the GenAI conventions.

Context is carried whether or not spans are exported, so that a service without an
exporter does not cut a trace in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

TRACER = trace.get_tracer("tensorway")


def setup(service: str, endpoint: str | None) -> None:
    """Export spans to an OTLP gRPC endpoint; without one, only carry the context."""
    if endpoint is None:
        return
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)


@contextmanager
def server_span(name: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """A span for a call that came in, under the caller's span if it sent one."""
    with TRACER.start_as_current_span(
        name, context=propagate.extract(headers), kind=SpanKind.SERVER
    ) as span:
        yield span


@contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue]) -> Iterator[Span]:
    """A span for work inside a call."""
    with TRACER.start_as_current_span(name, attributes=attributes) as span:
        yield span


def headers() -> dict[str, str]:
    """The current context as headers for the next hop."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
