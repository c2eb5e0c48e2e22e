"""Guards what a prompt costs us: CPU seconds of router and worker, with a fake engine.

CPU seconds are compared, not wall time, and not with yesterday's but with what an echo
server of gRPC's own costs at the same moment: the machine's speed and its noise are in
both. (Processors count instructions, which would be better, but not on most virtual
machines.) ``python -m bench.guard`` measures and compares, ``--record`` writes the baseline.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
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
# Requests of each batch size in a round, and echoes after each of them.
WORK = {1: (300, 3), 64: (30, 30)}
IN_FLIGHT = 8
# No new round is begun after so many, or so many seconds; the first is for warming up.
ROUNDS, SECONDS = 5, 40.0
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
    """CPU of a prompt, in units of what an echo costs, by batch size."""
    spread: Costs
    """The greatest part by which a recorded run was off."""


def exceeded(costs: Mapping[str, float], baseline: Baseline) -> list[str]:
    """What costs more than it may; pure."""
    return [
        f"batch {name}: a prompt costs {cost:.3f} echoes, "
        f"recorded {baseline.costs[name]:.3f}, at most {limit:.3f}"
        for name, cost in costs.items()
        if cost > (limit := baseline.costs[name] * (1 + baseline.margin))
    ]


def guarded() -> list[str]:
    """What costs more than it may, twice: once may have been noise."""
    baseline = read()
    return exceeded(measure(), baseline) and exceeded(measure(), baseline)


def read() -> Baseline:
    """The recorded baseline."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=Baseline)


def measure() -> Costs:
    """Start everything, count the cost of prompts in echoes, and print it."""
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
        costs = asyncio.run(_costs(ours, router, (echoes,), echo))
    print(", ".join(f"batch {name}: {cost:.3f} echoes" for name, cost in costs.items()), flush=True)
    return costs


async def _costs(
    ours: Sequence[Process], router: int, echoes: Sequence[Process], echo: int
) -> Costs:
    spent: dict[int, list[tuple[float, float]]] = {batch: [] for batch in WORK}
    until = time.monotonic() + SECONDS
    async with (
        grpc.aio.insecure_channel(f"{HOST}:{router}") as to_router,
        grpc.aio.insecure_channel(f"{HOST}:{echo}") as to_echo,
    ):
        client, echoed = GrpcClient(to_router), GrpcClient(to_echo, _ECHO)
        await to_echo.channel_ready()
        while len(spent[1]) < 2 or (len(spent[1]) < ROUNDS and time.monotonic() < until):
            for batch, found in spent.items():
                before = cpu_seconds(ours), cpu_seconds(echoes)
                await _round(client, echoed, batch)
                found.append((cpu_seconds(ours) - before[0], cpu_seconds(echoes) - before[1]))
    return {str(batch): _ratio(batch, found[1:]) for batch, found in spent.items()}


def _ratio(batch: int, found: Sequence[tuple[float, float]]) -> float:
    """What a prompt costs in echoes; rounds are added up before they are divided."""
    ours, echoes = map(sum, zip(*found, strict=True))
    return ours / echoes * WORK[batch][1] / batch


async def _round(client: Client, echoed: Client, batch: int) -> None:
    requests, echoes = WORK[batch]
    bodies = [client.prepare(make_texts(batch, _WORDS, seed)) for seed in range(16)]
    echo = echoed.prepare(make_texts(1, _WORDS, 0))
    left = iter(list(itertools.islice(itertools.cycle(bodies), requests)))

    async def caller() -> None:
        for body in left:
            await client.call(body)
            # At the same time, so that what slows one of the two slows the other as much.
            for _ in range(echoes):
                await echoed.call(echo)

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))


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
    elif over := guarded():
        sys.exit("\n".join(over))


if __name__ == "__main__":
    main()
