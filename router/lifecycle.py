"""What a router opens, in order; leaving closes it in the opposite one."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from prometheus_client import REGISTRY

from tensorway import metrics, serving
from tensorway.channels import Dialer
from tensorway.handlers import Service
from tensorway.options import DialOptions, ListenOptions, ObserveOptions

from . import processes
from .config import Config, load
from .fleet import Fleet
from .follow import following, open_leader
from .metrics import FleetCollector
from .options import RouterOptions
from .services import front, registry, relayed_registry, services
from .static import polled
from .status import StatusPage

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """All options of a router."""

    router: RouterOptions
    listen: ListenOptions
    dial: DialOptions
    observe: ObserveOptions


async def run(options: Options, stop: serving.Stop) -> None:
    """Route until told to stop."""
    config, router, listen = load(options.router.config), options.router, options.listen
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(router.rules(), Dialer(options.dial)))
        registered = await _registry(router, config, fleet, stack)
        shared = front(router, config, fleet)
        parts = services(router, shared, registered, listen.default_timeout)
        REGISTRY.register(FleetCollector(fleet))
        shown = metrics.serve(options.observe, pages=StatusPage(shared).pages())
        LOG.info("metrics and status page: %s", shown or "none (--metrics-port)")
        server = serving.Server(listen, parts, reuse_port=router.shares_port)
        await stack.enter_async_context(server)
        if router.processes > 1:
            leader = await stack.enter_async_context(processes.leading(parts, listen))
            others = processes.followers(router, leader, server.port, options.observe, stop)
            await stack.enter_async_context(others)
        await server.set_serving()
        await stop.wait()


async def _registry(
    router: RouterOptions, config: Config, fleet: Fleet, stack: AsyncExitStack
) -> Service:
    """Where workers register: here, or with the router that this one follows."""
    if router.follow is None:
        await stack.enter_async_context(polled(fleet, config.workers))
        return registry(router, fleet)
    leader = await stack.enter_async_context(open_leader(router.follow, fleet.dialer))
    await stack.enter_async_context(following(fleet, leader))
    return relayed_registry(leader, fleet)
