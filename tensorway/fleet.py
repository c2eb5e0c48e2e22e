"""What `tensorway up` starts, and the small TOML file that says it.

[router]
port = 50051

[rest]
port = 8000

[[workers]]
model = "sentence-transformers/all-MiniLM-L6-v2"
count = 2
args = ["--dtype", "float32"]
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from tensorway.flags import BadFlag

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class Service(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process with a port."""

    port: Port
    """0 takes a free one."""
    args: tuple[str, ...] = ()
    """Further flags of its command."""


class Workers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers of one model."""

    model: str
    """Folder or hub name."""
    count: Count = 1
    args: tuple[str, ...] = ()
    """Flags of the embedding worker and of vLLM."""
    env: dict[str, str] = {}
    """Environment variables of its processes, besides ours."""


class Encoder(Service, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An encoder service."""

    backend: str
    """Encoder class, as package.module:Class."""
    port: Port = 50052


class Generator(Service, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A generator service."""

    model: str
    """Folder or hub name."""
    port: Port = 50053


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that runs on this machine."""

    workers: tuple[Workers, ...] = ()
    router: Service = Service(50051)
    rest: Service = Service(8000)
    encoder: Encoder | None = None
    generator: Generator | None = None
    metrics_port: Port | None = None
    """Metrics port of worker 1; worker 2 gets the next one, and so on. 0: free ones."""


def load(path: Path) -> Fleet:
    """Read a fleet file; BadFlag names the file and the key that is wrong."""
    try:
        fleet = msgspec.convert(tomllib.loads(path.read_text()), Fleet)
    except tomllib.TOMLDecodeError as error:
        raise BadFlag(f"--fleet {path}: {error}") from error
    except msgspec.ValidationError as error:
        raise BadFlag(f"--fleet {path}: {_explain(error)}") from error
    if not fleet.workers and fleet.generator is None:
        raise BadFlag(f"--fleet {path}: nothing to serve; add [[workers]] with a model")
    return fleet


def _explain(error: msgspec.ValidationError) -> str:
    # "Expected `int`, got `str` - at `$.router.port`" -> "router.port: Expected ..."
    message, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    return f"{key}: {message}" if key else message
