"""gRPC channels, and what every hop must agree on."""

from __future__ import annotations

import grpc

from tensorway import logs, telemetry
from tensorway.credentials import channel_credentials, read_tokens
from tensorway.options import MIB, DialOptions

REQUEST_ID = "x-request-id"

# A client may ping as often as every 30 s. The server allows 10 s: a server that
# expects more (gRPC's default is 5 min) closes the connection as "too_many_pings".
_CLIENT_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)  # gRPC waits up to 2 min between attempts: too long for a worker whose router restarted.
_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_SERVER_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
# With over 1000 calls not yet picked up, gRPC starts to end new ones with CANCELLED, which
# tells a caller nothing; refusing is for admission, with a reason and a hint.
_BACKLOG = (
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
)

Metadata = tuple[tuple[str, str], ...]


def message_limits(mib: int) -> tuple[tuple[str, int], ...]:
    """Channel arguments for the largest message in both directions."""
    return (
        ("grpc.max_send_message_length", mib * MIB),
        ("grpc.max_receive_message_length", mib * MIB),
    )


def server_arguments(mib: int, reuse_port: bool = False) -> tuple[tuple[str, int], ...]:
    """Channel arguments of every server."""
    # Unless it is meant, a second server on the same port takes half of its calls.
    shared = ("grpc.so_reuseport", int(reuse_port))
    return (*message_limits(mib), *_SERVER_KEEPALIVE, *_BACKLOG, shared)


class Dialer:
    """Opens channels with one set of options, and writes the metadata of calls."""

    def __init__(self, options: DialOptions) -> None:
        limits = message_limits(options.dial_max_message_mib)
        self._arguments = (*limits, *_CLIENT_KEEPALIVE, *_RECONNECT)
        self._credentials = channel_credentials(options)
        tokens = read_tokens(options.dial_token_file, "--dial-token-file")
        self._authorization: Metadata = (
            (("authorization", f"Bearer {tokens[0].decode()}"),) if tokens else ()
        )

    def open(self, address: str, *arguments: tuple[str, str | int]) -> grpc.aio.Channel:
        """A channel to ``host:port``, with further channel arguments; the caller closes it."""
        options = (*self._arguments, *arguments)
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._credentials, options=options)

    def metadata(self) -> Metadata:
        """Metadata for the next hop: trace context, request id, our token."""
        request_id = logs.request_id.get()
        own = ((REQUEST_ID, request_id),) if request_id != "-" else ()
        return (*telemetry.headers().items(), *own, *self._authorization)
