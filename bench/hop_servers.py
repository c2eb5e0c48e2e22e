"""The servers of `bench.router_hop`: a worker that answers from memory, a proxy, nginx, Envoy.

    python -m bench.hop_servers worker ROUTER...
    python -m bench.hop_servers proxy PORT

Each prints its port.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tensorway.channels import Dialer, server_arguments
from tensorway.options import MAX_MESSAGE_MIB, DialOptions
from tensorway.registration import registered
from tensorway.v1 import embedding_pb2, model_pb2

EMBED = "/tensorway.v1.EmbeddingService/Embed"
MODEL = "bench"
BIG = "big"
"""The text whose answer has 4 MiB."""
ANSWER = embedding_pb2.EmbedResponse(
    model=MODEL, dimensions=384, embeddings=[{"values": [0.5] * 384}]
)
BIG_ANSWER = embedding_pb2.EmbedResponse(
    model=MODEL, dimensions=1024, embeddings=[{"values": [0.5] * 1024}] * 1024
)

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 64m; keepalive_requests 10000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream worker {{ server 127.0.0.1:{worker}; keepalive 64; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port} http2;
    location / {{ grpc_pass grpc://worker; grpc_buffer_size 64k; }}
  }}
}}
"""

ENVOY = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.\
http_connection_manager.v3.HttpConnectionManager
          stat_prefix: hop
          codec_type: HTTP2
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [
                {{ match: {{ prefix: / }}, route: {{ cluster: worker, timeout: 0s }} }} ] }}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: worker
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: worker
      endpoints: [ {{ lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address:
        {{ address: 127.0.0.1, port_value: {worker} }} }} }} }} ] }} ]
"""


async def serve(answer: Any) -> tuple[grpc.aio.Server, int]:
    """A bare grpc.aio server whose Embed takes and gives bytes, and its port."""
    handler = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server = grpc.aio.server(options=server_arguments(MAX_MESSAGE_MIB))
    service, method = EMBED.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def worker(*routers: str) -> None:
    """Answer from memory; registered with the routers."""
    small, big = ANSWER.SerializeToString(), BIG_ANSWER.SerializeToString()

    async def answer(request: bytes, context: Any) -> bytes:  # noqa: ARG001
        return big if BIG.encode() in request else small

    server, port = await serve(answer)
    registration = model_pb2.Worker(
        endpoint="bench.backend.embed",
        address=f"127.0.0.1:{port}",
        model=model_pb2.Model(name=MODEL),
    )
    print(port, flush=True)
    async with registered(routers, Dialer(DialOptions()), registration, model_pb2.WorkerLoad):
        await server.wait_for_termination()


async def proxy(port: str) -> None:
    """The least that a proxy in Python can do: hand bytes on."""
    async with Dialer(DialOptions()).open(f"127.0.0.1:{port}") as channel:
        send = channel.unary_unary(EMBED, None, None)

        async def answer(request: bytes, context: Any) -> bytes:
            return await send(request, timeout=context.time_remaining())

        server, own = await serve(answer)
        print(own, flush=True)
        await server.wait_for_termination()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the context."""
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def role(*arguments: str) -> tuple[str, ...]:
    """Command of one of these servers."""
    return (sys.executable, "-m", "bench.hop_servers", *arguments)


def nginx(folder: Path, worker: int, port: int) -> tuple[str, ...]:
    """Command of nginx in front of the worker."""
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, worker=worker, port=port))
    return ("nginx", "-e", "stderr", "-c", str(config))


def envoy(program: str, worker: int, port: int) -> tuple[str, ...]:
    """Command of Envoy in front of the worker, on one thread as nginx is."""
    config = ENVOY.format(worker=worker, port=port)
    return (program, "--concurrency", "1", "--log-level", "error", "--config-yaml", config)


def port_of(running: subprocess.Popen[str]) -> int:
    """The port that a process prints."""
    assert running.stdout is not None
    return int(running.stdout.readline())


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


if __name__ == "__main__":
    asyncio.run({"worker": worker, "proxy": proxy}[sys.argv[1]](*sys.argv[2:]))
