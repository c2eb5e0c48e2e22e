"""A collector of traces that keeps what comes as bytes, and reads it when all is over."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench.gpu import HOST

_SERVICE, _METHOD = "opentelemetry.proto.collector.trace.v1.TraceService", "Export"


class Span(NamedTuple):
    """A span of one of our services."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    """Empty for a span without one."""
    began: int
    """Nanoseconds since 1970."""
    ended: int
    numbers: dict[str, float]
    """Its attributes that are floats."""

    @property
    def ms(self) -> float:
        """How long it was."""
        return (self.ended - self.began) / 1e6


class Collector:
    """What was exported until now."""

    def __init__(self) -> None:
        self._exports: list[bytes] = []

    def export(self, request: bytes, context: Any) -> bytes:
        """Take spans; the empty answer says that all were taken."""
        del context
        self._exports.append(request)
        return b""

    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        return [span for export in self._exports for span in _read(export)]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector, and its address for ``--otlp-endpoint``."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    # Without a deserialiser a call gives bytes: reading them must not take the time of others.
    handler = grpc.unary_unary_rpc_method_handler(collector.export)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
    )
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield collector, f"http://{HOST}:{port}"
    finally:
        server.stop(0)


def _read(export: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(export).resource_spans:
        names = {a.key: a.value.string_value for a in resource.resource.attributes}
        for scope in resource.scope_spans:
            yield from (_span(names["service.name"], span) for span in scope.spans)


def _span(service: str, span: Any) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        numbers={
            attribute.key: attribute.value.double_value
            for attribute in span.attributes
            if attribute.value.HasField("double_value")
        },
    )
