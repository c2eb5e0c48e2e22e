"""One way to run a gRPC server: port, limits, health, reflection, signals, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from tensorway import connections
from tensorway.channels import server_arguments
from tensorway.credentials import is_loopback, read_tokens, server_credentials
from tensorway.flags import BadFlag
from tensorway.handlers import Calls, Service
from tensorway.options import MIB, ListenOptions

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# The server only closes its sockets once the last handler returned, which takes
# a moment after the grace period is over.
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS, _SOON_SECONDS = 0.02, 0.5


class Server:
    """A gRPC server as a context manager; leaving it drains.

    It answers health checks with NOT_SERVING until :meth:`set_serving`. Leaving goes in
    one order: NOT_SERVING, refuse new connections and calls, let others finish for
    ``options.grace`` seconds, end the rest with UNAVAILABLE, close. Being cancelled ends
    the grace. With `reuse_port` several processes may share the port, and the system shares
    connections out.
    """

    def __init__(
        self, options: ListenOptions, services: Sequence[Service], *, reuse_port: bool = False
    ) -> None:
        self.port = 0
        self._reuse_port = reuse_port
        self._options = options
        self._health = HealthServicer()
        self._names = [service.descriptor.full_name for service in services]
        self._calls = Calls(
            read_tokens(options.token_file),
            options.default_timeout,
            options.max_message_mib * MIB,
        )
        self._server = grpc.aio.server(
            options=server_arguments(options.max_message_mib, reuse_port)
        )
        self._server.add_generic_rpc_handlers(
            tuple(self._calls.handler(s) for s in (*services, *self._standard_services()))
        )

    async def __aenter__(self) -> Self:
        self.port = self._bind()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        LOG.info("listening on %s:%d", self._options.host, self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        grace = self._options.grace if error is None else 0.0
        # A second signal may come at every await; the calls are answered all the same.
        try:
            await self._health.enter_graceful_shutdown()
            self._calls.close()
            connections.refuse(self.port)
            await self._drain(grace)
        finally:
            self._calls.end()
            await self._calls.written()
            connections.end(self.port)
            await self._server.stop(_CLOSE_SECONDS)

    async def set_serving(self, serving: bool = True) -> None:
        """Tell health checks whether calls are answered."""
        states = health_pb2.HealthCheckResponse
        await self._set_health(states.SERVING if serving else states.NOT_SERVING)

    async def _drain(self, grace: float) -> None:
        """Let calls finish; a client goes elsewhere once its connection has none."""
        started, left, told = time.monotonic(), grace, None
        while not await self._calls.finish(min(left, _LOOK_SECONDS)):
            connections.end(self.port, self._calls.busy())
            left = started + grace - time.monotonic()
            if left <= 0:
                LOG.warning("not all calls finished within %g s", grace)
                return
            if told is None and grace - left > _SOON_SECONDS:
                # Who waits longer than that is told to send new calls elsewhere.
                told = asyncio.create_task(self._server.stop(left + _CLOSE_SECONDS))

    def _bind(self) -> int:
        options = self._options
        host = f"[{options.host}]" if ":" in options.host else options.host
        address, tls = f"{host}:{options.port}", server_credentials(options)
        if tls is None and not is_loopback(options.host):
            LOG.warning("plaintext on %s: anyone who reaches it can read and call", address)
        # Asked of the system first, which says why; gRPC only logs it.
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self._reuse_port)
                probe.bind((options.host, options.port))
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, tls)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadFlag(f"--host and --port: cannot listen on {address}: {reason}") from error

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    def _standard_services(self) -> list[Service]:
        probe = health_pb2.DESCRIPTOR.services_by_name["Health"]
        services = [Service(probe, self._health, lasting=frozenset({"Watch"}), open=True)]
        if self._options.reflection:
            described = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
            names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            lasting = frozenset({"ServerReflectionInfo"})
            services.append(Service(described, ReflectionServicer(names), lasting=lasting))
        return services


class Stop:
    """The wish to stop: set by the first SIGTERM or SIGINT, or by a failure."""

    def __init__(self) -> None:
        self._asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, error: BaseException | None = None) -> None:
        """Stop now; with an error, because of it."""
        if not self._asked.done():
            self._asked.set_exception(error) if error else self._asked.set_result(None)

    async def wait(self) -> None:
        """Return when asked to stop; raise the error that stops us."""
        await asyncio.shield(self._asked)

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of the work, or None if we were asked to stop before it came."""
        task = asyncio.create_task(work)
        waited: set[asyncio.Future[Any]] = {task, self._asked}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None


def run(
    service: Callable[[Stop], Awaitable[None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    """Run a service until it is told to stop; exits 0, or 1 after an error.

    The first SIGTERM or SIGINT asks it to stop, the second one cancels it.
    """
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_run(service))
    except asyncio.CancelledError:
        sys.exit(130)
    except BadFlag:
        raise
    except Exception:
        LOG.critical("stopped by an error", exc_info=True)
        sys.exit(1)


async def _run(service: Callable[[Stop], Awaitable[None]]) -> None:
    stop, task = Stop(), asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def received(number: int) -> None:
        signals.append(number)
        LOG.info("%s: %s", signal.Signals(number).name, "stopping" if len(signals) == 1 else "now")
        stop.ask() if len(signals) == 1 else task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received, number)
    await service(stop)
