"""What is measured: ours, and each of its peers, as processes that are asked."""

from __future__ import annotations

import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from bench.clients import NAME
from bench.gpu import HOST, free_port, healthy, registered, stand_in
from bench.jobs import Driver, Generator, Target
from bench.processes import Launcher, Process

CPU_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Plan:
    """What to serve, and how."""

    model: str
    flags: tuple[str, ...]
    """vLLM's own, the same for all."""
    ours: tuple[str, ...] = ()
    """More flags of our workers."""
    env: dict[str, str] = field(default_factory=dict)
    """More variables of our workers."""
    workers: int = 1
    """Of ours; more than one are bound to a core each, in turns."""
    observe: tuple[str, ...] = ()
    """More flags of each of our services."""
    dynamo: str = ""
    """Python that has ai-dynamo."""
    smg: str = ""
    """The smg program."""


class Subject(NamedTuple):
    """One way to ask a system, and the processes that answer."""

    name: str
    target: Target
    charged: tuple[Process, ...]
    driver: Driver | None = None
    """What asks it, if not our load generators: an engine without a server drives itself."""


class Start(NamedTuple):
    """A system that comes up: wait until it is ready before the subjects are asked."""

    ready: Callable[[], bool]
    subjects: list[Subject]


def tensorway(launcher: Launcher, stack: ExitStack, plan: Plan) -> Start:
    """Router, embed workers and REST shim."""
    del stack
    router, rest, *ports = (free_port() for _ in range(2 + plan.workers))
    asks = ("--router", f"{HOST}:{router}")
    seen = plan.observe
    flags = (plan.model, *_flags(plan), *asks, *plan.ours, *seen)
    routers = launcher.python("router", "router", "--port", str(router), *seen)
    workers = tuple(
        launcher.python(
            f"worker{index}",
            "embed_worker",
            *flags,
            "--port",
            str(port),
            env=_worker_env(plan, index),
        )
        for index, port in enumerate(ports)
    )
    rests = launcher.python("rest", "rest_shim", "--port", str(rest), *asks, *seen)
    subjects = [
        Subject("router", Target("grpc", f"{HOST}:{router}"), (routers, *workers)),
        Subject("worker", Target("grpc", f"{HOST}:{ports[0]}"), workers[:1]),
        Subject("rest", Target("base64", f"{HOST}:{rest}"), (rests, routers, *workers)),
    ]
    return Start(
        lambda: registered(router) == plan.workers and _lists_model(rest),
        subjects,
    )


def _worker_env(plan: Plan, index: int) -> dict[str, str]:
    # By itself vLLM binds every worker of a machine to the same core.
    core = {"VLLM_CPU_OMP_THREADS_BIND": str(index % (os.cpu_count() or 1))}
    return {**CPU_ENV, **(core if plan.workers > 1 else {}), **plan.env}


def vllm(
    launcher: Launcher, stack: ExitStack, plan: Plan, *, name: str = "vllm", **env: str
) -> Start:
    """`vllm serve`."""
    port, path = free_port(), _stand_in(stack)
    flags = (plan.model, *_flags(plan), "--port", str(port))
    cli = ("vllm.entrypoints.cli.main", "serve")
    server = launcher.python(name, *cli, *flags, env={**CPU_ENV, **path, **env})
    return Start(lambda: healthy(port), _encodings(name, port, (server,)))


def smg(launcher: Launcher, stack: ExitStack, plan: Plan) -> Start:
    """The smg gateway, in front of a `vllm serve` of its own."""
    back = vllm(launcher, stack, plan, name="smg-vllm")
    (server,), address = back.subjects[0].charged, back.subjects[0].target.address
    port, metrics = free_port(), free_port()
    flags = ("--worker-urls", f"http://{address}", "--host", HOST, "--port", str(port))
    more = ("--prometheus-port", str(metrics), "--model-path", plan.model)
    gateway = launcher.start("smg", (plan.smg, "launch", *flags, *more), CPU_ENV)
    subjects = _encodings("smg", port, (gateway, server))[:1]
    return Start(partial(_lists_model, port), subjects)


def dynamo(launcher: Launcher, stack: ExitStack, plan: Plan) -> Start:
    """NVIDIA Dynamo: frontend and embedding worker, found by files, asked over TCP."""
    port, found = free_port(), stack.enter_context(tempfile.TemporaryDirectory())
    env = {**CPU_ENV, "DYN_FILE_KV": found, "DYN_DISCOVERY_BACKEND": "file"}
    env |= {"DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
    flags = ("--embedding-worker", "--model", plan.model, *_flags(plan)[:2], *plan.flags)
    worker = launcher.start("dynamo", (plan.dynamo, "-m", "dynamo.vllm", *flags), env)
    listens = ("--http-host", HOST, "--http-port", str(port))
    front = launcher.start("dynamo-front", (plan.dynamo, "-m", "dynamo.frontend", *listens), env)
    return Start(partial(_lists_model, port), _encodings("dynamo", port, (front, worker)))


def engine(launcher: Launcher, stack: ExitStack, plan: Plan, *, kind: str) -> Start:
    """An engine alone, driven by a process that is its own load generator."""
    flags = (kind, plan.model, *plan.flags)
    env = {**CPU_ENV, **(plan.env if kind == "llm" else _stand_in(stack))}
    process = launcher.python(kind, "bench.floor", *flags, piped=True, env=env)
    generator = Generator(process.child)
    return Start(generator.ready, [Subject(kind, Target("engine"), (process,), generator)])


SYSTEMS: dict[str, Callable[[Launcher, ExitStack, Plan], Start]] = {
    "tensorway": tensorway,
    "vllm": vllm,
    # As many threads as ours has: by default a CPU build keeps one core free of the engine.
    "vllm-cores": partial(
        vllm, name="vllm-cores", VLLM_CPU_OMP_THREADS_BIND=f"0-{(os.cpu_count() or 1) - 1}"
    ),
    "dynamo": dynamo,
    "smg": smg,
    "llm": partial(engine, kind="llm"),
    "async": partial(engine, kind="async"),
}


def start(names: Sequence[str], launcher: Launcher, stack: ExitStack, plan: Plan) -> list[Subject]:
    """Start systems, one after the other so that no start is slowed by another."""
    subjects: list[Subject] = []
    for name in names:
        began = SYSTEMS[name](launcher, stack, plan)
        launcher.wait_for(name, began.ready)
        subjects += began.subjects
        print(f"{name} is up", file=sys.stderr)
    return subjects


def witnessed(subjects: Sequence[Subject], witness: Driver) -> list[Subject]:
    """The subjects, and those that speak OpenAI's API with base64 once more, asked by a witness."""
    known = (subject for subject in subjects if subject.target.kind == "base64")
    again = [one._replace(name=f"{one.name}, aiperf", driver=witness) for one in known]
    return [*subjects, *again]


def _flags(plan: Plan) -> tuple[str, ...]:
    return ("--served-model-name", NAME, "--runner", "pooling", *plan.flags)


def _encodings(name: str, port: int, charged: tuple[Process, ...]) -> list[Subject]:
    address = f"{HOST}:{port}"
    return [
        Subject(f"{name}-base64", Target("base64", address), charged),
        Subject(f"{name}-float", Target("float", address), charged),
    ]


def _stand_in(stack: ExitStack) -> dict[str, str]:
    return {"PYTHONPATH": stack.enter_context(stand_in())}


def _lists_model(port: int) -> bool:
    models = f"http://{HOST}:{port}/v1/models"
    with suppress(OSError), urllib.request.urlopen(models, timeout=2) as answer:
        return f'"{NAME}"' in answer.read().decode()
    return False
