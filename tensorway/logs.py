"""Logs, as text for people or JSON for machines, with request and trace id."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

from opentelemetry import trace
from pythonjsonlogger.json import JsonFormatter

from tensorway.options import ObserveOptions

request_id: ContextVar[str] = ContextVar("request_id", default="-")

TEXT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s %(trace_id)s] %(message)s"
JSON = "%(asctime)s %(levelname)s %(name)s %(request_id)s %(trace_id)s %(message)s"


def setup(options: ObserveOptions) -> None:
    """Send the log to standard error; standard output is for results."""
    handler = logging.StreamHandler(sys.stderr)
    json = options.log_format == "json"
    handler.setFormatter(JsonFormatter(JSON) if json else logging.Formatter(TEXT))
    handler.addFilter(_add_ids)
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler], force=True)


def _add_ids(record: logging.LogRecord) -> bool:
    span = trace.get_current_span().get_span_context()
    record.request_id = request_id.get()
    record.trace_id = trace.format_trace_id(span.trace_id) if span.is_valid else "-"
    return True
