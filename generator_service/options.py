"""Flags of the generator service."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tensorway.flags import BadFlag, flag
from tensorway.options import SECONDS, RegisterOptions
from tensorway.v1 import handoff_pb2

_COUNT = click.IntRange(min=1)


@dataclass(frozen=True)
class GeneratorOptions:
    """What is the generator's own."""

    max_requests: int = flag(
        256, help="Most requests in the service; more are refused.", type=_COUNT
    )
    max_result_mib: int = flag(256, help="Largest encoder result, in MiB.", type=_COUNT)
    max_held_mib: int = flag(
        2048, help="Most encoder results of all requests together, in MiB.", type=_COUNT
    )
    receive_timeout: float = flag(
        30.0, help="Longest wait for the next message of a request, in seconds.", type=SECONDS
    )
    generate_timeout: float = flag(
        600.0, help="Deadline in seconds for calls that set none.", type=SECONDS
    )
    engine_timeout: float = flag(
        120.0,
        help="Seconds in which a working engine must produce a token, or is taken for hung.",
        type=click.FloatRange(min=0.1),
    )
    require_encoder: str | None = flag(
        None, help="Take results of this encoder only, as MODEL or MODEL@REVISION."
    )

    def required_encoder(self) -> handoff_pb2.EncoderIdentity | None:
        """The encoder of --require-encoder."""
        if self.require_encoder is None:
            return None
        model, _, revision = self.require_encoder.partition("@")
        if not model:
            raise BadFlag(f"--require-encoder: expected a model, got {self.require_encoder!r}")
        return handoff_pb2.EncoderIdentity(model=model, revision=revision)


@dataclass(frozen=True)
class GeneratorRegisterOptions(RegisterOptions):
    """How the generator makes itself known."""

    endpoint: str = flag(
        "tensorway.backend.generate",
        help="The generator's place, namespace.component.endpoint; one model each.",
    )
