"""One trace, and one request id, over encoder and generator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tensorway import telemetry
from tests.encoder_service.pictures import image_input
from tests.encoder_service.test_services import asked, both
from tests.handoff.services import gathered

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Every span that ends, in order."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "TRACER", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def test_the_callers_trace_reaches_the_generator(spans: InMemorySpanExporter) -> None:
    """Encode, generate and the model's work are one tree under the caller's span."""
    async with both() as running:
        call = running.encoder.Generate(
            asked(image_input()),
            timeout=60,
            metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "mine")),
        )
        assert (await gathered(call)).request_id == "mine"
    found = {span.name: span for span in spans.get_finished_spans()}
    names = {
        "tensorway.v1.EncoderService/Generate",
        "encode",
        "tensorway.v1.GeneratorService/Generate",
        "text_completion echo",
    }
    assert names <= set(found)
    ids = {trace.format_trace_id(found[name].get_span_context().trace_id) for name in names}
    assert ids == {TRACE}
    front, back = (
        found[f"tensorway.v1.{name}Service/Generate"] for name in ("Encoder", "Generator")
    )
    assert trace.format_span_id(front.parent.span_id) == PARENT
    assert back.parent.span_id == front.get_span_context().span_id
    usage = found["text_completion echo"].attributes
    assert usage["gen_ai.usage.input_tokens"] == usage["gen_ai.usage.output_tokens"] == 4
