"""TLS and mutual TLS between real servers and clients, with certificates of a CA made here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import trustme

from tensorway.channels import Dialer
from tensorway.credentials import channel_credentials, server_credentials
from tensorway.flags import BadFlag
from tensorway.options import DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import Fake

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class Files:
    """PEM files of one CA and the certificates it issued."""

    folder: Path
    authority: trustme.CA

    @property
    def ca(self) -> Path:
        """The CA's own certificate."""
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    def issue(self, name: str, not_after: datetime | None = None) -> tuple[Path, Path]:
        """A certificate for this machine, and its key."""
        leaf = self.authority.issue_cert("127.0.0.1", "localhost", not_after=not_after)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        leaf.cert_chain_pems[0].write_to_path(cert)
        leaf.private_key_pem.write_to_path(key)
        return cert, key


@pytest.fixture(scope="module", name="files")
def files_fixture(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Our CA."""
    return Files(tmp_path_factory.mktemp("ca"), trustme.CA(organization_name="ours"))


@pytest.fixture(scope="module", name="strangers")
def strangers_fixture(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A CA that nobody here trusts."""
    return Files(tmp_path_factory.mktemp("strangers"), trustme.CA(organization_name="theirs"))


def listen(files: Files, mutual: bool = False) -> ListenOptions:
    """Options of a server with a certificate of ours."""
    cert, key = files.issue("server")
    return ListenOptions(tls_cert=cert, tls_key=key, tls_client_ca=files.ca if mutual else None)


def dial(ca: Path, pair: tuple[Path, Path] | None = None) -> DialOptions:
    """Options of a client that trusts a CA, with its own certificate or without."""
    cert, key = pair or (None, None)
    return DialOptions(dial_tls_ca=ca, dial_tls_cert=cert, dial_tls_key=key)


@asynccontextmanager
async def serving(options: ListenOptions) -> AsyncIterator[int]:
    """A server; gives its port."""
    async with Server(options, Fake().services()) as server:
        yield server.port


async def call(port: int, options: DialOptions, host: str = "127.0.0.1") -> str:
    """The answer to one call over a connection of its own."""
    async with Dialer(options).open(f"{host}:{port}") as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        return (await stub.Embed(pb.EmbedRequest(model="m"), timeout=10)).model


async def refused(port: int, options: DialOptions, host: str = "127.0.0.1") -> str:
    """What a client is told that gets no connection."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(port, options, host)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


async def test_tls(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """A client that trusts the CA gets through; a wide address needs no warning then."""
    cert, key = files.issue("server")
    async with serving(ListenOptions(host="0.0.0.0", tls_cert=cert, tls_key=key)) as port:
        assert await call(port, dial(files.ca)) == "m"
        assert await call(port, dial(files.ca), host="localhost") == "m"
    assert "plaintext" not in caplog.text


async def test_a_client_that_trusts_another_ca(files: Files, strangers: Files) -> None:
    """The text says that it is the certificate, not the network."""
    async with serving(listen(files)) as port:
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(port, dial(strangers.ca))


async def test_a_server_whose_certificate_expired(files: Files) -> None:
    """An old certificate is as good as none."""
    cert, key = files.issue("old", LONG_AGO)
    async with serving(ListenOptions(tls_cert=cert, tls_key=key)) as port:
        assert "certificate has expired" in await refused(port, dial(files.ca))


async def test_a_server_of_another_name(files: Files) -> None:
    """A certificate is for the names in it, and for no other way to the same machine."""
    async with serving(listen(files)) as port:
        assert "127.0.0.2" in await refused(port, dial(files.ca), host="127.0.0.2")


async def test_plaintext_to_a_tls_port(files: Files) -> None:
    """A client without TLS gets no answer at all, but an error soon."""
    async with serving(listen(files)) as port:
        await refused(port, DialOptions())


async def test_tls_to_a_plaintext_port(files: Files) -> None:
    """A client with TLS never falls back to plaintext."""
    async with serving(ListenOptions()) as port:
        assert "WRONG_VERSION_NUMBER" in await refused(port, dial(files.ca))


async def test_mutual_tls(files: Files) -> None:
    """A client with a certificate of our CA gets through."""
    async with serving(listen(files, mutual=True)) as port:
        assert await call(port, dial(files.ca, files.issue("client"))) == "m"


@pytest.mark.parametrize("client", ["without", "stranger", "expired"])
async def test_mutual_tls_refuses(files: Files, strangers: Files, client: str) -> None:
    """No certificate, one of another CA, and one that expired are all refused."""
    pairs = {
        "without": None,
        "stranger": strangers.issue("client"),
        "expired": files.issue("expired", LONG_AGO),
    }
    async with serving(listen(files, mutual=True)) as port:
        await refused(port, dial(files.ca, pairs[client]))
        # The server is none the worse for it.
        assert await call(port, dial(files.ca, files.issue("client"))) == "m"


async def test_certificates_are_renewed_under_a_running_server(
    files: Files, strangers: Files
) -> None:
    """A new certificate counts from the next connection on; a broken file changes nothing."""
    options = listen(files)
    cert, key = options.tls_cert, options.tls_key
    assert cert is not None
    assert key is not None
    async with serving(options) as port:
        assert await call(port, dial(files.ca)) == "m"
        for old, new in zip((cert, key), strangers.issue("server"), strict=True):
            old.write_bytes(new.read_bytes())
        assert await call(port, dial(strangers.ca)) == "m"
        await refused(port, dial(files.ca))
        cert.write_text("half written")
        assert await call(port, dial(strangers.ca)) == "m"
        cert.unlink()
        assert await call(port, dial(strangers.ca)) == "m"


def test_listening_flags_that_do_not_fit(files: Files, strangers: Files) -> None:
    """Half of TLS is refused, and so is what only a client would notice."""
    cert, key = files.issue("server")
    _, other_key = strangers.issue("server")
    text = files.folder / "text.pem"
    text.write_text("not a certificate")
    for options, flags in (
        (ListenOptions(tls_cert=cert), "both --tls-cert and --tls-key"),
        (ListenOptions(tls_key=key), "both --tls-cert and --tls-key"),
        (ListenOptions(tls_client_ca=files.ca), "both --tls-cert and --tls-key"),
        (ListenOptions(tls_cert=cert, tls_key=other_key), "--tls-cert and --tls-key: "),
        (ListenOptions(tls_cert=text, tls_key=key), "--tls-cert and --tls-key: "),
        (ListenOptions(tls_cert=cert, tls_key=key, tls_client_ca=text), "--tls-client-ca: "),
    ):
        with pytest.raises(BadFlag, match=flags):
            server_credentials(options)
    assert server_credentials(ListenOptions()) is None


def test_dialling_flags_that_do_not_fit(files: Files) -> None:
    """The same for clients."""
    cert, key = files.issue("client")
    text = files.folder / "text.pem"
    text.write_text("not a certificate")
    for options, flags in (
        (DialOptions(dial_tls_cert=cert), "both --dial-tls-cert and --dial-tls-key"),
        (DialOptions(dial_tls_ca=files.ca, dial_tls_key=key), "both --dial-tls-cert and"),
        (DialOptions(dial_tls_cert=cert, dial_tls_key=key), "--dial-tls-cert needs --dial-tls-ca"),
        (dial(text), "--dial-tls-ca: "),
        (dial(files.ca, (text, key)), "--dial-tls-cert and --dial-tls-key: "),
    ):
        with pytest.raises(BadFlag, match=flags):
            channel_credentials(options)
    assert channel_credentials(DialOptions()) is None
