"""Bearer tokens: who needs one, and what happens without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tensorway import errors
from tensorway.channels import Dialer
from tensorway.credentials import check_token, is_loopback, read_tokens
from tensorway.flags import BadFlag
from tensorway.options import DialOptions, ListenOptions
from tensorway.v1 import embedding_pb2 as pb
from tensorway.v1 import embedding_pb2_grpc
from tests.tensorway.services import EMBED, Fake

METADATA = {
    "right": (("authorization", "Bearer one"),),
    "the other right one": (("authorization", "Bearer two"),),
    "lower case": (("authorization", "bearer one"),),
    "none": (),
    "wrong": (("authorization", "Bearer three"),),
    "prefix": (("authorization", "Bearer on"),),
    "empty": (("authorization", "Bearer "),),
    "basic": (("authorization", "Basic one"),),
    "bare": (("authorization", "one"),),
}
RIGHT = ("right", "the other right one", "lower case")


@pytest.fixture
async def guarded(serving: Any, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server that takes the tokens "one" and "two"."""
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n\n  two  \n")
    options = ListenOptions(token_file=tokens)
    async with serving(*Fake().services(), options=options) as channel:
        yield channel


@pytest.mark.parametrize("given", METADATA)
async def test_calls_need_a_token(guarded: grpc.aio.Channel, given: str, rpcs: Any) -> None:
    """Unary and streaming calls are answered with one of the tokens, and only then."""
    stub = embedding_pb2_grpc.EmbeddingServiceStub(guarded)
    request = pb.EmbedRequest(model="m")
    unary = stub.Embed(request, metadata=METADATA[given])
    stream = stub.EmbedStream(
        iter([pb.EmbedStreamRequest(request=request)]), metadata=METADATA[given]
    )
    if given in RIGHT:
        assert (await unary).model == "m"
        assert (await stream.read()).response.model == "m"
        return
    for answer in (unary, stream.read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer
        error = errors.from_rpc_error(caught.value)
        assert (type(error), errors.http_status(error)) == (errors.Unauthenticated, 401)
        assert "expected 'Bearer TOKEN'" in error.message
        assert "three" not in error.message
    assert rpcs(EMBED, "UNAUTHENTICATED") == 1


async def test_health_needs_none(guarded: grpc.aio.Channel) -> None:
    """An orchestrator's probe has no token."""
    answer = await health_pb2_grpc.HealthStub(guarded).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_needs_one(guarded: grpc.aio.Channel) -> None:
    """The contract is told to nobody without a token."""
    stub = reflection_pb2_grpc.ServerReflectionStub(guarded)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ServerReflectionInfo(iter([request])).read()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    answer = stub.ServerReflectionInfo(iter([request]), metadata=METADATA["right"])
    assert (await answer.read()).list_services_response.service


async def test_a_dialers_token(guarded: grpc.aio.Channel, tmp_path: Path) -> None:
    """A service sends the first token of its file with every call."""
    file = tmp_path / "mine"
    file.write_text("two\nlater\n")
    metadata = Dialer(DialOptions(dial_token_file=file)).metadata()
    assert ("authorization", "Bearer two") in metadata
    stub = embedding_pb2_grpc.EmbeddingServiceStub(guarded)
    assert (await stub.Embed(pb.EmbedRequest(model="m"), metadata=metadata)).model == "m"


@pytest.mark.parametrize("text", ["", "\n \n", "tökén", "two words"])
def test_files_that_hold_no_token(tmp_path: Path, text: str) -> None:
    """An empty file is not an open door, and what gRPC cannot send is refused at the start."""
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(BadFlag, match="--token-file: "):
        read_tokens(file)
    with pytest.raises(BadFlag, match="--dial-token-file: "):
        Dialer(DialOptions(dial_token_file=file))


def test_no_file_is_no_token() -> None:
    """Without the flag no token is asked for."""
    assert read_tokens(None) == ()


def test_a_token_in_other_letters_is_wrong() -> None:
    """A header that is not ASCII is refused, not a crash."""
    with pytest.raises(errors.Unauthenticated, match="got a wrong token"):
        check_token("Bearer tökén", (b"one",))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]  # noqa: RUF005
    + [("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False), ("", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    """Only addresses that never leave this machine count."""
    assert is_loopback(host) is expected
