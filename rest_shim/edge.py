"""What happens around every request: id, trace, token, permit, disconnect, metrics, errors."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from tensorway import credentials, logs, telemetry
from tensorway.errors import HTTP_STATUSES, Cancelled

from . import metrics
from .admission import Admission
from .errors import to_domain, to_response
from .exchange import Exchange, replay

API = "/v1/"


class Edge:
    """ASGI middleware with the rules that hold for all requests.

    Probes, metrics and the description need neither a token nor a permit: they must
    answer when everything else is refused.
    """

    def __init__(
        self, app: ASGIApp, admission: Admission, tokens: tuple[bytes, ...], timeout: float
    ) -> None:
        self._app = app
        self._admission = admission
        self._tokens = tokens
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, exchange = time.perf_counter(), Exchange(scope, receive, send)
        logs.request_id.set(exchange.request_id)
        serve = self._serve_api if scope["path"].startswith(API) else self._serve
        with telemetry.server_span(scope["method"], exchange.headers) as span:
            try:
                await serve(exchange)
            except (Exception, asyncio.CancelledError) as raised:
                await _fail(exchange, raised)
            span.update_name(f"{scope['method']} {exchange.route}")
        metrics.REQUESTS.labels(exchange.route, exchange.status).inc()
        metrics.SECONDS.labels(exchange.route).observe(time.perf_counter() - started)

    async def _serve(self, exchange: Exchange) -> None:
        await self._app(exchange.scope, exchange.receive, exchange.send)

    async def _serve_api(self, exchange: Exchange) -> None:
        if self._tokens:
            credentials.check_token(exchange.headers.get("authorization", ""), self._tokens)
        with self._admission.permit() as permit, metrics.IN_FLIGHT.track_inprogress():
            async with asyncio.timeout(self._timeout):
                body = await permit.read(exchange.headers, exchange.receive)
            # The body is read here, so that from now on a disconnect can be listened for.
            async with exchange.while_connected():
                await self._app(exchange.scope, replay(body), exchange.send)


async def _fail(exchange: Exchange, raised: BaseException) -> None:
    error = to_domain(raised)
    if isinstance(error, Cancelled):
        exchange.status = exchange.status or HTTP_STATUSES[Cancelled]
    elif exchange.started:
        # Too late for a status: the connection is closed, which tells the client.
        raise raised
    else:
        await to_response(error)(exchange.scope, exchange.receive, exchange.send)
