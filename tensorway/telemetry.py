"""OpenTelemetry: W3C trace context across every hop, spans by the GenAI conventions.

Context is carried whether or not spans are exported, so that a service without an
exporter does not cut a trace in two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import grpc
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

_EXPORT_SECONDS = 3

TRACER = trace.get_tracer("tensorway")

_FIELDS = frozenset(propagate.get_global_textmap().fields)
_NO_SPAN = nullcontext(trace.INVALID_SPAN)

Operation = Literal["embeddings", "text_completion", "generate_content"]

# The conventions call these a server's errors; every other code is the caller's.
_SERVER_FAULTS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}


def setup(service: str, endpoint: str | None) -> None:
    """Export spans to an OTLP gRPC endpoint; without one, only carry the context."""
    if endpoint is None:
        return
    # The last export is waited for when the process ends, so it must not take long.
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def server_span(name: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
    """A span for a call that came in, under the caller's span if it sent one."""
    parent = context.Context() if _FIELDS.isdisjoint(headers) else propagate.extract(headers)
    span = TRACER.start_span(name, context=parent, kind=SpanKind.SERVER)
    # No exporter and no caller's trace: nothing to carry, and no time to lose.
    if span is trace.INVALID_SPAN:
        return _NO_SPAN
    # An error here is how the call ended, which end_rpc tells; most are the caller's.
    return trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    )


def end_rpc(span: Span, method: str, code: grpc.StatusCode) -> None:
    """Say how the call of a server span ended."""
    if not span.is_recording():
        return
    attributes = {"rpc.system.name": "grpc", "rpc.method": method}
    span.set_attributes({**attributes, "rpc.response.status_code": code.name})
    if code in _SERVER_FAULTS:
        span.set_attribute("error.type", code.name)
        span.set_status(StatusCode.ERROR)


@contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue]) -> Iterator[Span]:
    """A span for work inside a call."""
    with TRACER.start_as_current_span(name, attributes=attributes) as span:
        yield span


def stage(name: str) -> AbstractContextManager[Span]:
    """A span for a part of the current span's work; costs nothing when that is not recorded."""
    if not trace.get_current_span().is_recording():
        return _NO_SPAN
    return TRACER.start_as_current_span(name)


def past_stage(name: str, began: float, seconds: float, **attributes: AttributeValue) -> None:
    """The same for work that another process of this machine has done; monotonic seconds."""
    if not trace.get_current_span().is_recording():
        return
    start = time.time_ns() - round((time.monotonic() - began) * 1e9)
    span = TRACER.start_span(name, start_time=start, attributes=attributes)
    span.end(start + round(seconds * 1e9))


@contextmanager
def model_span(operation: Operation, model: str) -> Iterator[Span]:
    """A span for a model's work, named and described by the GenAI conventions.

    What the work cost is known at its end; :func:`set_usage` adds it.
    """
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "tensorway",
        "gen_ai.request.model": model,
    }
    with TRACER.start_as_current_span(
        f"{operation} {model}", attributes=attributes, kind=SpanKind.CLIENT
    ) as span:
        yield span


def set_usage(span: Span, input_tokens: int, output_tokens: int = 0) -> None:
    """Tell the tokens of a model's work; output tokens only where some were generated."""
    span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
    if output_tokens:
        span.set_attribute("gen_ai.usage.output_tokens", output_tokens)


def headers() -> dict[str, str]:
    """The current context as headers for the next hop."""
    carrier: dict[str, str] = {}
    if context.get_current():
        propagate.inject(carrier)
    return carrier
