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

MAX_PORT = 65535
Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]
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


# Those that listen on a port of their own; their keys in the file.
SERVICES = ("router", "rest", "encoder", "generator")


def chosen_ports(fleet: Fleet) -> dict[int, str]:
    """The ports that are not left to chance, with who gets them; BadFlag if they cannot work."""
    services = {name: getattr(fleet, name) for name in SERVICES}
    wanted = [(service.port, name) for name, service in services.items() if service]
    if fleet.metrics_port:
        count = sum(pool.count for pool in fleet.workers)
        wanted += [(fleet.metrics_port + n, f"metrics of worker-{n + 1}") for n in range(count)]
    ports: dict[int, str] = {}
    for port, name in wanted:
        if port > MAX_PORT:
            raise BadFlag(f"metrics_port: {name} would get {port}, over {MAX_PORT}")
        if port and ports.setdefault(port, name) != name:
            raise BadFlag(f"port {port} is given to {ports[port]} and to {name}")
    return ports


def load(path: Path) -> Fleet:
    """Read a fleet file; BadFlag names the file and the key that is wrong."""
    try:
        fleet = msgspec.convert(tomllib.loads(path.read_text()), Fleet)
        chosen_ports(fleet)
    except BadFlag as error:
        raise BadFlag(f"--fleet {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise BadFlag(f"--fleet {path}: expected UTF-8: {error}") from error
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
