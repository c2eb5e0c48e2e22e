"""What docs/operations.md and docs/contract.md say, held against the code."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from tensorway import errors
from tensorway.channels import Dialer
from tensorway.options import DialOptions, ListenOptions, ObserveOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import Fake

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
CONTRACT = (DOCS / "contract.md").read_text()


def test_the_table_of_errors() -> None:
    """Every error of the tree is in the table, with its code, status and reason."""
    rows = set(re.findall(r"^\| ([A-Z_]+) \| (\d+) \| `([A-Z_]+)`", CONTRACT, re.MULTILINE))
    for kind, code in errors.GRPC_CODES.items():
        assert (code.name, str(errors.HTTP_STATUSES[kind]), kind.reason) in rows
    assert {(code, status) for code, status, _ in rows} == {
        (code.name, str(errors.HTTP_STATUSES[kind])) for kind, code in errors.GRPC_CODES.items()
    }


def test_every_test_in_the_coverage_exists() -> None:
    """A test that is renamed does not leave its requirement without one."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (DOCS / "coverage.md").read_text())
    assert named
    for path, test in named:
        text = (DOCS.parent / path).read_text()
        assert not test or re.search(rf"def {test}\(", text), f"{path}::{test}"


@pytest.mark.parametrize("group", [ListenOptions, DialOptions, ObserveOptions])
def test_every_shared_flag_is_told(group: type) -> None:
    """A flag that is added to the core is added to the page."""
    for field in dataclasses.fields(group):
        assert f"`--{field.name.replace('_', '-')}`" in OPERATIONS


async def test_the_openssl_commands(tmp_path: Path) -> None:
    """The commands are run as they are written, and what they make is used."""
    (script,) = re.findall(r"```sh\n(mkdir -p certs\n.*?)```", OPERATIONS, re.DOTALL)
    subprocess.run(  # noqa: ASYNC221
        ["bash", "-euc", script], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    certs = tmp_path / "certs"
    listen = ListenOptions(
        tls_cert=certs / "router.pem",
        tls_key=certs / "router.key",
        tls_client_ca=certs / "ca.pem",
        token_file=certs / "token",
    )
    dialer = Dialer(
        DialOptions(
            dial_tls_ca=certs / "ca.pem",
            dial_tls_cert=certs / "client.pem",
            dial_tls_key=certs / "client.key",
            dial_token_file=certs / "token",
        )
    )
    async with (
        Server(listen, Fake().services()) as server,
        dialer.open(f"localhost:{server.port}") as channel,
    ):
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = pb.EmbedRequest(model="m")
        assert (await stub.Embed(request, metadata=dialer.metadata())).model == "m"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(request)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
