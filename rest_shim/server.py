"""The HTTP server: one listening socket, shared by one or more processes."""

from __future__ import annotations

import functools
import logging
import signal
import socket
import ssl
import sys

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from tensorway import logs, telemetry
from tensorway.credentials import is_loopback, server_credentials
from tensorway.flags import BadFlag
from tensorway.metrics import serve as serve_metrics
from tensorway.options import DialOptions, ListenOptions, ObserveOptions

from . import metrics
from .app import create_app
from .options import RestOptions
from .protocol import Protocol

LOG = logging.getLogger(__name__)

# Longer than clients keep idle connections (httpx 5 s, proxies 60 s), so that it is
# they who close one: closing it under a request that is on its way loses the request.
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


def serve(rest: RestOptions, dial: DialOptions, observe: ObserveOptions) -> None:
    """Serve until told to stop; exits 0, or 1 when it could not start."""
    # Files that cannot be used are told here, before any process starts.
    create_app(rest, dial)
    config = uvicorn_config(rest, functools.partial(start, rest, dial, observe))
    listener = listen(rest)
    # The server repeats the signal after it drained; by then it means nothing more.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if rest.processes == 1:
        serve_metrics(observe, metrics.registry())
        server = uvicorn.Server(config)
        server.run([listener])
        sys.exit(0 if server.started else 1)
    with metrics.shared():
        serve_metrics(observe, metrics.registry())
        Multiprocess(config, [listener]).run()


def start(rest: RestOptions, dial: DialOptions, observe: ObserveOptions) -> ASGIApp:
    """The application of one process; called in that process."""
    logs.setup(observe)
    telemetry.setup("tensorway-rest", observe.otlp_endpoint)
    return create_app(rest, dial)


def listen(rest: RestOptions) -> socket.socket:
    """The listening socket; raises BadFlag for what cannot work."""
    tls = ListenOptions(
        tls_cert=rest.tls_cert, tls_key=rest.tls_key, tls_client_ca=rest.tls_client_ca
    )
    server_credentials(tls)
    family = socket.AF_INET6 if ":" in rest.host else socket.AF_INET
    try:
        listener = socket.create_server((rest.host, rest.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        address = f"{rest.host}:{rest.port}"
        raise BadFlag(f"--port: cannot listen on {address}: {error.strerror}") from error
    LOG.info("listening on %s:%d", rest.host, listener.getsockname()[1])
    if rest.tls_cert is None and not is_loopback(rest.host):
        LOG.warning("plaintext on %s: anyone who reaches it can read and call", rest.host)
    return listener


def uvicorn_config(rest: RestOptions, factory: functools.partial[ASGIApp]) -> uvicorn.Config:
    """The HTTP server's settings."""
    return uvicorn.Config(
        factory,
        factory=True,
        workers=rest.processes,
        http=Protocol,
        loop="uvloop",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=rest.grace,
        ssl_certfile=rest.tls_cert,
        ssl_keyfile=rest.tls_key,
        ssl_ca_certs=str(rest.tls_client_ca) if rest.tls_client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if rest.tls_client_ca else ssl.CERT_NONE,
    )
