"""Logs, as text for people or JSON for machines, with request and trace id."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

from opentelemetry import trace
from pythonjsonlogger.json import JsonFormatter

from tensorway.errors import InvalidArgument
from tensorway.options import ObserveOptions

MAX_REQUEST_ID = 128

# They warn of each header that is malformed: a caller could fill our log.
_TALKATIVE = ("opentelemetry.trace", "opentelemetry.baggage", "opentelemetry.util.re")

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
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def bind_request_id(given: str) -> str:
    """The id of the request at hand: its own if it has one, or else that of its call.

    Logs carry it from here on. Raises InvalidArgument for one that is too long to log.
    """
    if len(given) > MAX_REQUEST_ID:
        expected = f"expected at most {MAX_REQUEST_ID} characters, got {len(given)}"
        raise InvalidArgument(f"request_id: {expected}", field="request_id")
    if given:
        request_id.set(given)
    return request_id.get()


def _add_ids(record: logging.LogRecord) -> bool:
    span = trace.get_current_span().get_span_context()
    given = request_id.get()
    # It comes from outside: a line break in it would be a forged line.
    record.request_id = given if given.isprintable() else ascii(given)
    record.trace_id = trace.format_trace_id(span.trace_id) if span.is_valid else "-"
    return True
