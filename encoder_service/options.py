"""Flags of the encoder service."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tensorway.flags import flag
from tensorway.options import SECONDS, RegisterOptions

_COUNT = click.IntRange(min=1)


@dataclass(frozen=True)
class EncoderServiceOptions:
    """What is the encoder service's own."""

    name: str = flag("", help="Name of the encoder's model; default: --backend-model.")
    generator: str | None = flag(
        None, help="Generator for Generate, host:port; or a router that knows generators."
    )
    max_requests: int = flag(
        256, help="Most requests in the service; more are refused.", type=_COUNT
    )
    request_timeout: float = flag(
        600.0, help="Deadline in seconds for calls that set none.", type=SECONDS
    )


@dataclass(frozen=True)
class EncoderRegisterOptions(RegisterOptions):
    """How the encoder makes itself known."""

    endpoint: str = flag(
        "tensorway.backend.encode",
        help="The encoder's place, namespace.component.endpoint; one model each.",
    )
