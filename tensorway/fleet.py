"""What `tensorway up` starts: a small TOML file, turned into processes by pure functions.

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

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from tensorway.flags import BadFlag

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]
HOST = "127.0.0.1"


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


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that runs on this machine."""

    workers: tuple[Workers, ...] = ()
    router: Service = Service(50051)
    rest: Service = Service(8000)
    encoder: Service | None = None
    generator: Service | None = None
    metrics_port: Port | None = None
    """Metrics port of worker 1; worker 2 gets the next one, and so on. 0: free ones."""


@dataclass(frozen=True)
class Machine:
    """What there is to share among workers."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """One process to start, and how to see that it is ready."""

    name: str
    argv: tuple[str, ...]
    stage: int
    """Processes stop in the order of their stages, those of one stage together."""
    grpc: str | None = None
    """Address whose health check says that it is ready."""
    http: str | None = None
    """URL that answers 200 when it is ready."""
    endpoint: str | None = None
    """Endpoint that the router lists once it is ready."""
    env: Mapping[str, str] = field(default_factory=dict)


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


def plan(fleet: Fleet, machine: Machine) -> tuple[Launch, ...]:
    """The processes of a fleet whose ports are known, in the order to start them.

    The front door stops first, then what it leads to: nothing accepted is lost.
    """
    router = f"{HOST}:{fleet.router.port}"
    return (
        Launch("router", _service("router", fleet.router), stage=2, grpc=router),
        *_workers(fleet, machine, router),
        *_generator(fleet.generator),
        *_encoder(fleet.encoder),
        Launch(
            "rest",
            (*_service("rest_shim", fleet.rest), "--router", router),
            stage=0,
            http=f"http://{HOST}:{fleet.rest.port}/readyz",
        ),
    )


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """The cores that we may run on, and the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = affinity(0) if affinity else range(os.cpu_count() or 1)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = ",".join(sorted(p.name[6:] for p in Path("/dev").glob("nvidia[0-9]*")))
    return Machine(tuple(sorted(cores)), tuple(gpu for gpu in visible.split(",") if gpu))


def share(machine: Machine, index: int, count: int) -> dict[str, str]:
    """Environment that gives worker `index` of `count` a GPU, or cores, of its own.

    Left alone, vLLM binds every worker on a machine to the same first cores.
    """
    if machine.gpus:
        return {"CUDA_VISIBLE_DEVICES": machine.gpus[index % len(machine.gpus)]}
    if count == 1:
        return {}
    total = len(machine.cores)
    first, last = index * total // count, (index + 1) * total // count
    cores = machine.cores[first:last] or (machine.cores[index % total],)
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}


def _workers(fleet: Fleet, machine: Machine, router: str) -> list[Launch]:
    pools = [pool for pool in fleet.workers for _ in range(pool.count)]
    return [
        Launch(
            f"worker-{index + 1}",
            (
                *(*_python("embed_worker"), pool.model, *pool.args),
                *("--router", router, "--endpoint", _endpoint(index)),
                *_metrics(fleet.metrics_port, index),
            ),
            stage=3,
            endpoint=_endpoint(index),
            env={**share(machine, index, len(pools)), **pool.env},
        )
        for index, pool in enumerate(pools)
    ]


def _generator(service: Service | None) -> list[Launch]:
    if service is None:
        return []
    argv = _service("generator_service", service)
    return [Launch("generator", argv, stage=3, grpc=f"{HOST}:{service.port}")]


def _encoder(service: Service | None) -> list[Launch]:
    if service is None:
        return []
    argv = _service("encoder_service", service)
    return [Launch("encoder", argv, stage=1, grpc=f"{HOST}:{service.port}")]


def _service(module: str, service: Service) -> tuple[str, ...]:
    return (*_python(module), *service.args, "--port", str(service.port))


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def _endpoint(index: int) -> str:
    return f"tensorway.worker-{index + 1}.embed"


def _metrics(port: int | None, index: int) -> Sequence[str]:
    if port is None:
        return ()
    return ("--metrics-port", str(port + index if port else 0))


def _explain(error: msgspec.ValidationError) -> str:
    # "Expected `int`, got `str` - at `$.router.port`" -> "router.port: Expected ..."
    message, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    return f"{key}: {message}" if key else message
