"""TLS and bearer tokens, for listeners and for clients."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

import grpc

from tensorway.errors import Unauthenticated
from tensorway.flags import BadFlag
from tensorway.options import DialOptions, ListenOptions


def server_credentials(options: ListenOptions) -> grpc.ServerCredentials | None:
    """Credentials of a listener, or None for plaintext.

    Certificates are read again for each connection, so that they can be renewed
    under a running server.
    """
    if options.tls_cert is None or options.tls_key is None:
        if options.tls_cert or options.tls_key or options.tls_client_ca:
            raise BadFlag("TLS needs both --tls-cert and --tls-key")
        return None
    cert, key, client_ca = options.tls_cert, options.tls_key, options.tls_client_ca
    _check_pair(cert, key, "--tls-cert and --tls-key")
    _check_ca(client_ca, "--tls-client-ca")

    def load() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), cert.read_bytes())],
            root_certificates=client_ca.read_bytes() if client_ca else None,
        )

    return grpc.dynamic_ssl_server_credentials(
        load(), load, require_client_authentication=client_ca is not None
    )


def channel_credentials(options: DialOptions) -> grpc.ChannelCredentials | None:
    """Credentials of a client, or None for plaintext."""
    if bool(options.dial_tls_cert) != bool(options.dial_tls_key):
        raise BadFlag("mutual TLS needs both --dial-tls-cert and --dial-tls-key")
    if options.dial_tls_ca is None:
        if options.dial_tls_cert:
            raise BadFlag("--dial-tls-cert needs --dial-tls-ca")
        return None
    _check_ca(options.dial_tls_ca, "--dial-tls-ca")
    if options.dial_tls_cert and options.dial_tls_key:
        flags = "--dial-tls-cert and --dial-tls-key"
        _check_pair(options.dial_tls_cert, options.dial_tls_key, flags)
    return grpc.ssl_channel_credentials(
        root_certificates=options.dial_tls_ca.read_bytes(),
        private_key=_read(options.dial_tls_key),
        certificate_chain=_read(options.dial_tls_cert),
    )


def read_tokens(path: Path | None, flag: str = "--token-file") -> tuple[bytes, ...]:
    """The tokens in a file, one a line; an empty file is an error, not an open door."""
    if path is None:
        return ()
    tokens = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    if not tokens:
        raise BadFlag(f"{flag}: no token in {path}")
    # gRPC would refuse to send such a header, in the middle of a call.
    if any(not token.isascii() or b" " in token for token in tokens):
        raise BadFlag(f"{flag}: a token in {path} has a space or is not ASCII")
    return tokens


def check_token(authorization: str, tokens: Iterable[bytes]) -> None:
    """Raise Unauthenticated unless the header carries one of the tokens."""
    scheme, _, token = authorization.partition(" ")
    # Every token is compared, in constant time, so that timing tells nothing.
    matches = [hmac.compare_digest(token.strip().encode(), known) for known in tokens]
    if scheme.lower() != "bearer" or not any(matches):
        given = "a wrong token" if authorization else "none"
        raise Unauthenticated(f"authorization: expected 'Bearer TOKEN', got {given}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on that host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# gRPC itself reports such files only when a client fails to connect, and as a bad handshake.
def _check_pair(cert: Path, key: Path, flags: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise BadFlag(f"{flags}: {cert} and {key} do not work together: {error}") from error


def _check_ca(path: Path | None, flag: str) -> None:
    if path is None:
        return
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise BadFlag(f"{flag}: no CA certificate in {path}: {error}") from error


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
