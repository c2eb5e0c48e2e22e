"""The router's TOML file: aliases, and workers that do not register themselves.

[aliases]
text-embedding-3-small = { minilm = 1 }
canary = { minilm = 9, minilm-v2 = 1 }

[[workers]]
address = "10.0.0.5:50052"
endpoint = "search.backend.embed"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tensorway.flags import BadFlag

Weight = Annotated[float, Meta(ge=0, le=1e9)]


class StaticWorker(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker that is asked for what it serves, instead of registering."""

    address: Annotated[str, Meta(pattern=r"^\S+:\d+$")]
    endpoint: Annotated[str, Meta(pattern=r"^[\w-]+(\.[\w-]+){2}$")]


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the file may say."""

    aliases: dict[str, dict[str, Weight]] = {}
    """Alias -> model -> weight; the weights need not sum to 1."""
    workers: tuple[StaticWorker, ...] = ()

    def __post_init__(self) -> None:
        for alias, targets in self.aliases.items():
            if not sum(targets.values()) > 0:
                raise ValueError(f"aliases.{alias}: expected a model with a weight above 0")


def load(path: Path | None) -> Config:
    """The configuration in a file; an empty one without a file."""
    if path is None:
        return Config()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadFlag(f"--config: {path}: {error}") from error
