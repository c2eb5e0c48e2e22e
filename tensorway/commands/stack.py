"""A fleet on this machine, from start to stop: what `up` and `demo` share."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import msgspec
from rich.text import Text

from tensorway import processes, readiness
from tensorway.channels import Dialer
from tensorway.commands.screen import Screen
from tensorway.flags import BadFlag
from tensorway.fleet import SERVICES, Fleet, chosen_ports
from tensorway.launches import HOST, plan, this_machine
from tensorway.options import DialOptions

Work = Callable[[Screen], Awaitable[None]]

# How to choose the port of each service; what is left is --metrics-port.
_PORT_FLAGS = {
    "router": "--port",
    "rest": "--rest-port",
    "encoder": "encoder.port of the fleet file",
    "generator": "generator.port of the fleet file",
}


def run(fleet: Fleet, work: Work, screen: Screen) -> None:
    """Start a fleet, do the work once it is ready, stop the fleet, and exit if it failed.

    The first SIGINT, SIGTERM or SIGHUP ends the work and stops everything in order; the
    second one kills what is left.
    """
    signals: list[int] = []
    try:
        asyncio.run(_run(fleet, work, screen, signals))
    except* processes.ProcessFailed as group:
        _explain(screen, group)
        sys.exit(1)
    except* BrokenPipeError:
        screen.note("Whoever read this has left; everything was stopped.")
        # So that nothing is written there on the way out.
        screen.console.on_broken_pipe()
    except* asyncio.CancelledError:
        if len(signals) > 1:
            sys.exit(130)
        screen.note("Stopped.")
        screen.event("stopped")


async def _run(fleet: Fleet, work: Work, screen: Screen, signals: list[int]) -> None:
    _cancel_on_signals(screen, signals)
    launches = plan(fleet, this_machine())
    names = tuple(launch.name for launch in launches)
    screen.event("starting", processes=names)
    async with processes.running(launches, screen.line) as children, asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(children.watch())
        with screen.starting(names) as starting:
            router = f"{HOST}:{fleet.router.port}"
            await readiness.ready(launches, router, Dialer(DialOptions()), starting.ready)
        await work(screen)
        watch.cancel()


def settle(fleet: Fleet) -> Fleet:
    """The fleet with free ports in place of 0; BadFlag when a port is taken."""
    for port, name in chosen_ports(fleet).items():
        if not is_free(port):
            raise BadFlag(
                f"port {port} for {name} is taken; choose another one, "
                f"or 0 for any free one, with {_PORT_FLAGS.get(name, '--metrics-port')}"
            )
    replace = msgspec.structs.replace
    with ExitStack() as held:
        services = {name: getattr(fleet, name) for name in SERVICES}
        free = {
            name: replace(service, port=_free_port(held))
            for name, service in services.items()
            if service and service.port == 0
        }
    return replace(fleet, **free)


def is_free(port: int) -> bool:
    """Whether nobody listens on that port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port(held: ExitStack) -> int:
    """A free port, which stays bound for so long, since it is to be given once."""
    probe = held.enter_context(socket.socket())
    probe.bind((HOST, 0))
    port: int = probe.getsockname()[1]
    return port


def _cancel_on_signals(screen: Screen, signals: list[int]) -> None:
    task = asyncio.current_task()
    assert task is not None

    def received(number: int) -> None:
        signals.append(number)
        first = len(signals) == 1
        screen.note("\nStopping; once more kills." if first else "\nKilling.")
        screen.event("stopping" if first else "killing")
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, received, number)


def _explain(screen: Screen, group: BaseExceptionGroup[processes.ProcessFailed]) -> None:
    for error in group.exceptions:
        assert isinstance(error, processes.ProcessFailed)
        if screen.quiet:
            for line in error.process.tail:
                screen.console.print(screen.prefixed(error.process.name, line))
        screen.console.print(Text(f"{error}; everything was stopped", style="bold red"))
        tail = list(error.process.tail)
        screen.event("failed", process=error.process.name, message=str(error), output=tail)
