"""The ``tensorway-router`` command."""

from __future__ import annotations

import logging
import os
from functools import partial

import uvloop

from tensorway import lifeline, logs, memory, serving, telemetry
from tensorway.flags import command
from tensorway.options import DialOptions, ObserveOptions

from .lifecycle import Options, run
from .options import RouterListenOptions, RouterOptions

LOG = logging.getLogger(__name__)

# Room for a few answers of some MiB, which come and go with every call.
KEPT_MIB = 128


@command("tensorway-router", RouterOptions, RouterListenOptions, DialOptions, ObserveOptions)
def main(
    router: RouterOptions, listen: RouterListenOptions, dial: DialOptions, observe: ObserveOptions
) -> None:
    """Find the workers of a model and share its requests among them."""
    if router.is_follower:
        lifeline.die_with_parent(os.getppid())
    memory.keep_freed(KEPT_MIB)
    logs.setup(observe)
    LOG.info("%s %s %s %s", router, listen, dial, observe)
    telemetry.setup("tensorway-router", observe.otlp_endpoint)
    # uvloop takes a part off the time that a call spends in the event loop (docs/router.md).
    serving.run(partial(run, Options(router, listen, dial, observe)), uvloop.new_event_loop)


if __name__ == "__main__":
    main()
