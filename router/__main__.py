"""The ``tensorway-router`` command."""

from __future__ import annotations

import logging

from prometheus_client import REGISTRY

from tensorway import logs, metrics, serving, telemetry
from tensorway.channels import Dialer
from tensorway.flags import command
from tensorway.options import DialOptions, ObserveOptions

from .config import load
from .fleet import Fleet
from .metrics import FleetCollector
from .options import RouterListenOptions, RouterOptions
from .services import front, services
from .static import polled
from .status import StatusPage

LOG = logging.getLogger(__name__)


@command("tensorway-router", RouterOptions, RouterListenOptions, DialOptions, ObserveOptions)
def main(
    router: RouterOptions, listen: RouterListenOptions, dial: DialOptions, observe: ObserveOptions
) -> None:
    """Find the workers of a model and share its requests among them."""
    logs.setup(observe)
    LOG.info("%s %s %s %s", router, listen, dial, observe)
    telemetry.setup("tensorway-router", observe.otlp_endpoint)
    config = load(router.config)

    async def run(stop: serving.Stop) -> None:
        async with Fleet(router.rules(), Dialer(dial)) as fleet, polled(fleet, config.workers):
            shared = front(router, config, fleet)
            REGISTRY.register(FleetCollector(fleet))
            where = metrics.serve(observe, pages=StatusPage(shared).pages())
            LOG.info("metrics and status page: %s", where or "none (--metrics-port)")
            parts = services(router, shared, listen.default_timeout)
            async with serving.Server(listen, parts) as server:
                await server.set_serving()
                await stop.wait()

    serving.run(run)


if __name__ == "__main__":
    main()
