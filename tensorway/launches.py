"""The processes of a fleet: pure functions from what is wanted to what is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorway.fleet import Encoder, Fleet, Service, Workers

HOST = "127.0.0.1"


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


def plan(fleet: Fleet, machine: Machine) -> tuple[Launch, ...]:
    """The processes of a fleet whose ports are known, in the order to start them.

    The front door stops first, then what it leads to: nothing accepted is lost.
    """
    router = f"{HOST}:{fleet.router.port}"
    return (
        Launch("router", _service("router", fleet.router), stage=2, grpc=router),
        *_workers(fleet, machine, router),
        *_generator(fleet, machine, router),
        *_encoder(fleet.encoder, router),
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
    pools = _pools(fleet)
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
            env={**share(machine, index, _engines(fleet)), **pool.env},
        )
        for index, pool in enumerate(pools)
    ]


def _generator(fleet: Fleet, machine: Machine, router: str) -> list[Launch]:
    if (generator := fleet.generator) is None:
        return []
    argv = (*_service("generator_service", generator, generator.model), "--router", router)
    env = share(machine, len(_pools(fleet)), _engines(fleet))
    return [Launch("generator", argv, stage=3, grpc=f"{HOST}:{generator.port}", env=env)]


def _encoder(encoder: Encoder | None, router: str) -> list[Launch]:
    if encoder is None:
        return []
    finds = ("--backend", encoder.backend, "--generator", router)
    argv = (*_service("encoder_service", encoder, *finds), "--router", router)
    return [Launch("encoder", argv, stage=1, grpc=f"{HOST}:{encoder.port}")]


def _pools(fleet: Fleet) -> list[Workers]:
    return [pool for pool in fleet.workers for _ in range(pool.count)]


def _engines(fleet: Fleet) -> int:
    return len(_pools(fleet)) + (fleet.generator is not None)


def _service(module: str, service: Service, *first: str) -> tuple[str, ...]:
    return (*_python(module), *first, *service.args, "--port", str(service.port))


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def _endpoint(index: int) -> str:
    return f"tensorway.worker-{index + 1}.embed"


def _metrics(port: int | None, index: int) -> Sequence[str]:
    if port is None:
        return ()
    return ("--metrics-port", str(port + index if port else 0))
