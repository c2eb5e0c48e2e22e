"""The command ``tensorway-rest``."""

from __future__ import annotations

from tensorway import logs
from tensorway.flags import command
from tensorway.options import DialOptions, ObserveOptions

from .options import RestOptions
from .server import serve


@command("tensorway-rest", RestOptions, DialOptions, ObserveOptions)
def main(rest: RestOptions, dial: DialOptions, observe: ObserveOptions) -> None:
    """Serve OpenAI's HTTP API in front of a router."""
    logs.setup(observe)
    serve(rest, dial, observe)


if __name__ == "__main__":
    main()
