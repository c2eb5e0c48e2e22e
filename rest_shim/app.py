"""The shim as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from tensorway.channels import Dialer
from tensorway.credentials import read_tokens
from tensorway.options import DialOptions

from . import metrics
from .admission import Admission
from .edge import Edge
from .errors import on_http_exception
from .openapi import Description
from .operations import operations
from .options import RestOptions
from .probes import Probes
from .upstream import Upstream


def create_app(rest: RestOptions, dial: DialOptions) -> Starlette:
    """The application; it calls the router over one channel, opened when it starts."""
    upstream = Upstream(rest.router, Dialer(dial), rest.timeout, rest.generate_timeout)
    admission = Admission(rest.max_concurrency, rest.max_body, rest.max_buffered)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with upstream.connected():
            yield

    app = Starlette(
        routes=_routes(rest, upstream),
        middleware=[Middleware(Edge, admission, read_tokens(rest.token_file), rest.timeout)],
        exception_handlers={HTTPException: on_http_exception},
        lifespan=lifespan,
    )
    # A redirect turns a POST into a GET, and is no error in OpenAI's shape.
    app.router.redirect_slashes = False
    return app


def _routes(rest: RestOptions, upstream: Upstream) -> list[Route]:
    api = operations(upstream, rest)
    description, probes = Description(api), Probes(upstream)
    return [
        *(Route(o.path, o.handler, methods=[o.method]) for o in api),
        Route("/openapi.json", description.json),
        Route("/docs", description.html),
        Route("/healthz", probes.live),
        Route("/readyz", probes.ready),
        Route("/metrics", metrics.show),
    ]
