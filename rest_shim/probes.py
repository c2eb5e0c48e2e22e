"""GET /healthz and /readyz, for orchestrators."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tensorway.errors import Unavailable

from .upstream import Upstream


class Probes:
    """The handlers."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def live(self, _request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """The router takes calls; raises Unavailable when it does not."""
        if not await self._upstream.serving():
            raise Unavailable("the router takes no calls")
        return JSONResponse({"status": "ok"})
