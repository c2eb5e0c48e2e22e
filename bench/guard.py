"""Guards what a prompt costs us: CPU seconds of router and worker, with a fake engine.

CPU seconds are compared, not wall time, and not with yesterday's but with what an echo
server of gRPC's own costs in the same minute: the machine's speed and its noise are in
both. ``python -m bench.guard`` measures and compares, ``--record`` writes the baseline.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import grpc
import msgspec

from bench.clients import NAME, Client, GrpcClient
from bench.gpu import HOST, free_port, make_texts, registered
from bench.processes import Launcher, Process, cpu_seconds, leave_on_sigterm

BASELINE = Path(__file__).with_name("baseline.json")
# Requests of each batch size in a round, echoes in it, and how many of them are in flight.
REQUESTS, ECHOES, IN_FLIGHT = {1: 800, 64: 50}, 3000, 8
# The least of these is taken: noise only ever adds.
ROUNDS = 4
# The engine's flags. Every character is a token to it, and these are the longest texts it takes.
_ENGINE = ("--dimensions", "384", "--max-model-len", "64", "--max-num-seqs", "1024")
_WORDS = 10
_ECHO = "/echo/Echo"

Costs = dict[str, float]


class Baseline(msgspec.Struct):
    """What was recorded."""

    margin: float
    """How much more than recorded is still let pass, as a part."""
    costs: Costs
    """CPU of 1000 prompts, in units of what 1000 echoes cost, by batch size."""
    spread: Costs
    """The greatest part by which a recorded run was off."""


def exceeded(costs: Mapping[str, float], baseline: Baseline) -> list[str]:
    """What costs more than it may; pure."""
    return [
        f"batch {name}: 1000 prompts cost {cost:.3f} times 1000 echoes, "
        f"recorded {baseline.costs[name]:.3f}, at most {limit:.3f}"
        for name, cost in costs.items()
        if cost > (limit := baseline.costs[name] * (1 + baseline.margin))
    ]


def read() -> Baseline:
    """The recorded baseline."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=Baseline)


def measure() -> Costs:
    """Start everything, and count the cost of prompts in echoes."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = Launcher(stack, logs)
        router, worker, echo = (free_port() for _ in range(3))
        asks, names = ("--router", f"{HOST}:{router}"), ("--served-model-name", NAME)
        flags = ("--engine", "fake", *names, *_ENGINE, *asks, "--port", str(worker))
        echoes = launcher.python("echo", "bench.guard", "--echo", str(echo))
        ours = (
            launcher.python("router", "router", "--port", str(router)),
            launcher.python("worker", "embed_worker", *flags),
        )
        launcher.wait_for("the worker", lambda: registered(router) > 0)
        return asyncio.run(_costs(ours, router, (echoes,), echo))


async def _costs(
    ours: Sequence[Process], router: int, echoes: Sequence[Process], echo: int
) -> Costs:
    found: dict[str, list[float]] = {"echo": [], **{str(batch): [] for batch in REQUESTS}}
    async with (
        grpc.aio.insecure_channel(f"{HOST}:{router}") as to_router,
        grpc.aio.insecure_channel(f"{HOST}:{echo}") as to_echo,
    ):
        client, echoed = GrpcClient(to_router), GrpcClient(to_echo, _ECHO)
        await to_echo.channel_ready()
        for _ in range(ROUNDS):
            found["echo"].append(await _cost(echoes, echoed, 1, ECHOES))
            for batch, requests in REQUESTS.items():
                found[str(batch)].append(await _cost(ours, client, batch, requests))
    least = {name: min(costs) for name, costs in found.items()}
    unit = least.pop("echo")
    return {name: cost / unit for name, cost in least.items()}


async def _cost(charged: Sequence[Process], client: Client, batch: int, requests: int) -> float:
    """CPU seconds of 1000 prompts."""
    bodies = [client.prepare(make_texts(batch, _WORDS, seed)) for seed in range(16)]
    left = iter(list(itertools.islice(itertools.cycle(bodies), requests)))

    async def caller() -> None:
        for body in left:
            await client.call(body)

    await client.call(bodies[0])
    before = cpu_seconds(charged)
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return (cpu_seconds(charged) - before) / (requests * batch) * 1000


async def _serve_echo(port: int) -> None:
    async def answer(request: bytes, context: Any) -> bytes:  # noqa: ARG001
        return request

    service, method = _ECHO.strip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


def record(runs: int, margin: float) -> Baseline:
    """Measure several times and keep the middle."""
    measured = [measure() for _ in range(runs)]
    costs = {name: median(run[name] for run in measured) for name in measured[0]}
    spread = {
        name: max(abs(run[name] / cost - 1) for run in measured) for name, cost in costs.items()
    }
    return Baseline(margin, _rounded(costs), _rounded(spread))


def _rounded(values: Costs) -> Costs:
    return {name: round(value, 4) for name, value in values.items()}


@click.command()
@click.option("--record", "runs", default=0, help="Runs to record the baseline from.")
@click.option("--margin", default=0.3, show_default=True, help="With --record: what may pass.")
@click.option("--echo", default=0, hidden=True)
def main(runs: int, margin: float, echo: int) -> None:
    """Compare what prompts cost us with the recorded baseline, or record it."""
    leave_on_sigterm()
    if echo:
        asyncio.run(_serve_echo(echo))
    elif runs:
        BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(record(runs, margin))) + b"\n")
        click.echo(BASELINE.read_text())
    else:
        costs = measure()
        click.echo("\n".join(f"batch {name}: {cost:.3f} echoes" for name, cost in costs.items()))
        if over := exceeded(costs, read()):
            sys.exit("\n".join(over))


if __name__ == "__main__":
    main()
