"""Options that every service has."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from tensorway.flags import flag

_YEAR = 365 * 24 * 3600.0


class Finite(click.FloatRange):
    """A number in a range; unlike click's own range, never nan or infinite."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse and check the text of a flag."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Seconds(Finite):
    """A number of seconds, at most a year: beyond some 300 years gRPC's clock overflows."""

    name = "seconds"

    def __init__(self, min: float, min_open: bool = False) -> None:
        super().__init__(min=min, max=_YEAR, min_open=min_open)


class Matching(click.ParamType[str]):
    """Text of a given form."""

    def __init__(self, pattern: str, name: str) -> None:
        self.name = name
        self._pattern = re.compile(pattern)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text of a flag."""
        if not self._pattern.fullmatch(value):
            self.fail(f"expected {self.name}, got {value!r}.", param, ctx)
        return str(value)


# A number up to 65535.
_PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
ADDRESS = Matching(rf"\S+:{_PORT}", "host:port")
TARGET = Matching(r"(?!https?:)\S+:\S+", "host:port")
# Without a port https has one of its own, and http would be asked on that of https.
OTLP = Matching(rf"https?://[^\s/]+:{_PORT}/?|https://[^\s/:]+/?", "http://host:port")
ENDPOINT = Matching(r"[\w-]+(\.[\w-]+){2}", "namespace.component.endpoint")
MIB = 1024 * 1024
PORT = click.IntRange(0, 65535)
SECONDS = Seconds(min=0)
# 2048 texts of 4096 float32 numbers are 32 MiB; gRPC's own default of 4 MiB
# failed users of other servers on whichever hop had been forgotten.
MAX_MESSAGE_MIB = 64


@dataclass(frozen=True)
class ListenOptions:
    """Where a service listens, and for whom."""

    host: str = flag("127.0.0.1", help="Address to listen on; loopback unless told otherwise.")
    port: int = flag(0, help="gRPC port; 0 takes a free one.", type=PORT)
    tls_cert: Path | None = flag(None, help="Certificate chain (PEM); turns TLS on.")
    tls_key: Path | None = flag(None, help="Private key (PEM) of --tls-cert.")
    tls_client_ca: Path | None = flag(
        None, help="CA (PEM) that clients' certificates must be from; turns mutual TLS on."
    )
    token_file: Path | None = flag(
        None, help="File of accepted bearer tokens, one a line; calls without one are refused."
    )
    max_message_mib: int = flag(
        MAX_MESSAGE_MIB,
        help="Largest gRPC message, in MiB; the same on every hop.",
        type=click.IntRange(1, 2047),
    )
    default_timeout: float = flag(
        60.0,
        help="Deadline in seconds for unary calls that set none.",
        type=Seconds(min=0, min_open=True),
    )
    grace: float = flag(
        30.0, help="Seconds that calls in flight get to finish at shutdown.", type=SECONDS
    )
    reflection: bool = flag(True, help="Offer server reflection (grpcurl needs it).")


@dataclass(frozen=True)
class DialOptions:
    """How a service calls others."""

    dial_tls_ca: Path | None = flag(
        None, help="CA (PEM) that servers' certificates must be from; turns TLS on."
    )
    dial_tls_cert: Path | None = flag(None, help="Client certificate chain (PEM) for mutual TLS.")
    dial_tls_key: Path | None = flag(None, help="Private key (PEM) of --dial-tls-cert.")
    dial_token_file: Path | None = flag(None, help="File with the bearer token to send.")
    dial_max_message_mib: int = flag(
        MAX_MESSAGE_MIB,
        help="Largest gRPC message to send or take, in MiB.",
        type=click.IntRange(1, 2047),
    )


@dataclass(frozen=True)
class ObserveOptions:
    """What a service tells about itself."""

    log_level: Literal["debug", "info", "warning", "error"] = flag(
        "info", help="Least severe message to log."
    )
    log_format: Literal["text", "json"] = flag("text", help="Shape of a log line.")
    metrics_host: str = flag("127.0.0.1", help="Address of the metrics port.")
    metrics_port: int | None = flag(
        None, help="Prometheus metrics over HTTP; 0 takes a free port.", type=PORT
    )
    otlp_endpoint: str | None = flag(
        None, help="OTLP gRPC endpoint for traces, e.g. http://127.0.0.1:4317.", type=OTLP
    )


@dataclass(frozen=True)
class RegisterOptions:
    """How a worker makes itself known."""

    router: tuple[str, ...] = flag(
        (), help="Router to register with, host:port; several may be given.", type=ADDRESS
    )
    endpoint: str = flag(
        "tensorway.backend.embed",
        help="The worker's place, namespace.component.endpoint; one model each.",
        type=ENDPOINT,
    )
    advertise: str | None = flag(
        None,
        help="Address others reach this worker at, host:port; default: --host and the port it got.",
        type=ADDRESS,
    )
