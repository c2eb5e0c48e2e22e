"""`tensorway up`: router, workers and REST shim on this machine, from one command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from tensorway import fleet as fleets
from tensorway.commands import stack
from tensorway.commands.screen import Screen
from tensorway.flags import BadFlag, command, flag
from tensorway.fleet import Fleet, Workers
from tensorway.launches import HOST
from tensorway.options import PORT


@dataclass(frozen=True)
class UpOptions:
    """What to start, and where."""

    fleet: Path | None = flag(None, help="TOML file that says what to start, in place of MODEL.")
    workers: int = flag(
        1,
        help="Workers of MODEL, each with a GPU, or its share of the cores, of its own.",
        type=click.IntRange(1, 1024),
    )
    port: int | None = flag(None, help="gRPC port of the router; 50051 if not given.", type=PORT)
    rest_port: int | None = flag(
        None, help="HTTP port of the REST shim; 8000 if not given.", type=PORT
    )
    metrics_port: int | None = flag(
        None, help="Metrics port of worker 1; worker 2 gets the next one, and so on.", type=PORT
    )
    json: bool = flag(False, help="Events as lines of JSON; what processes print goes to stderr.")


@command("tensorway-up", UpOptions, extra_args=True)
def up(options: UpOptions, args: tuple[str, ...]) -> None:
    """Start router, workers and REST shim on this machine.

    tensorway up MODEL [FLAGS]: MODEL is a folder or hub name, and every flag that is not
    listed here goes to its workers as it is, and from there to vLLM. Ctrl-C stops
    everything in order.
    """
    fleet = stack.settle(choose(options, args))
    screen = Screen(quiet=False, events=options.json)
    stack.run(fleet, lambda screen: serve(fleet, screen), screen)


def choose(options: UpOptions, args: tuple[str, ...]) -> Fleet:
    """The fleet that flags and file ask for; flags beat the file."""
    if options.fleet is not None:
        if args:
            raise BadFlag(f"{args[0]}: with --fleet, models and their flags are in the file")
        fleet = fleets.load(options.fleet)
    elif args:
        model, *flags = args
        if model.startswith("-"):
            raise BadFlag(f"{model}: MODEL comes before the flags of its workers")
        fleet = Fleet(workers=(Workers(model, options.workers, tuple(flags)),))
    else:
        raise BadFlag("what to serve? Give a MODEL, or a file with --fleet")
    return with_ports(fleet, options.port, options.rest_port, options.metrics_port)


def with_ports(fleet: Fleet, port: int | None, rest_port: int | None, metrics: int | None) -> Fleet:
    """The fleet with other ports, where they are given."""
    replace = msgspec.structs.replace
    if port is not None:
        fleet = replace(fleet, router=replace(fleet.router, port=port))
    if rest_port is not None:
        fleet = replace(fleet, rest=replace(fleet.rest, port=rest_port))
    return fleet if metrics is None else replace(fleet, metrics_port=metrics)


async def serve(fleet: Fleet, screen: Screen) -> None:
    """Say where to call, and stay up until we are stopped."""
    where(fleet, screen)
    await stay(screen)


async def stay(screen: Screen) -> None:
    """Wait for a signal."""
    screen.note("Ctrl-C stops everything.")
    await asyncio.Event().wait()


def where(fleet: Fleet, screen: Screen) -> None:
    """Say where the front doors are."""
    doors = addresses(fleet)
    screen.event("up", **doors)
    screen.console.print()
    screen.console.print(f"  gRPC  [bold]{doors['grpc']}[/]")
    screen.console.print(f"  REST  [bold]{doors['rest']}[/]")
    screen.console.print()


def addresses(fleet: Fleet) -> dict[str, str]:
    """Where the front doors are: `grpc` as host:port, `rest` as a base URL for OpenAI's clients."""
    return {
        "grpc": f"{HOST}:{fleet.router.port}",
        "rest": f"http://{HOST}:{fleet.rest.port}/v1",
    }
