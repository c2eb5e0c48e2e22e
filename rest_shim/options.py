"""Options of the REST shim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from tensorway.flags import flag
from tensorway.options import MIB, PORT, TARGET, Seconds

_COUNT = click.IntRange(min=1)
_TIME = Seconds(min=0, min_open=True)


@dataclass(frozen=True)
class RestOptions:
    """Where the shim listens, whom it asks, and how much it takes on."""

    host: str = flag("127.0.0.1", help="Address to listen on; loopback unless told otherwise.")
    port: int = flag(8000, help="HTTP port; 0 takes a free one.", type=PORT)
    router: str = flag(
        "127.0.0.1:50051", help="Router to ask, host:port or a gRPC target name.", type=TARGET
    )
    processes: int = flag(1, help="Processes that share the port.", type=_COUNT)
    tls_cert: Path | None = flag(None, help="Certificate chain (PEM); turns HTTPS on.")
    tls_key: Path | None = flag(None, help="Private key (PEM) of --tls-cert.")
    tls_client_ca: Path | None = flag(
        None, help="CA (PEM) that clients' certificates must be from; turns mutual TLS on."
    )
    token_file: Path | None = flag(
        None, help="File of accepted bearer tokens, one a line; /v1 refuses calls without one."
    )
    timeout: float = flag(60.0, help="Deadline of a request in seconds.", type=_TIME)
    generate_timeout: float = flag(
        600.0, help="Deadline of a chat or completion in seconds.", type=_TIME
    )
    generator: tuple[str, ...] = flag(
        (), help="Model to chat with, and the folder of its tokenizer: MODEL=FOLDER."
    )
    image_encoder: str | None = flag(None, help="Encoder's model for images in chats.")
    image_token: str = flag("<image>", help="Token that stands for an image in prompts.")
    grace: int = flag(
        30, help="Seconds that requests in flight get to finish at shutdown.", type=_COUNT
    )
    max_concurrency: int = flag(
        512, help="Requests in flight per process; more are refused with status 429.", type=_COUNT
    )
    max_body_mib: int = flag(
        32, help="Largest request body in MiB; a larger one is refused with 413.", type=_COUNT
    )
    max_buffered_mib: int = flag(
        256, help="All request bodies in flight per process, in MiB; over it is 429.", type=_COUNT
    )
    token_ids: str = flag(
        "model",
        help="What token ids in `input` mean: ids of the `model`; `refuse` them; or a file with "
        "another vocabulary, in tiktoken's form, by which they become texts again.",
    )
    strict: bool = flag(False, help="Refuse fields that the API does not know.")

    @property
    def max_body(self) -> int:
        """Largest request body, in bytes."""
        return self.max_body_mib * MIB

    @property
    def max_buffered(self) -> int:
        """All request bodies in flight, in bytes."""
        return self.max_buffered_mib * MIB
