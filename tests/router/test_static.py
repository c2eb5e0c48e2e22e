"""Workers that do not register: named in a file, polled, taken out when they are gone."""

from __future__ import annotations

import grpc
import pytest

from router import static
from router.config import StaticWorker
from tests.router.conftest import Running
from tests.router.fakes import FakeWorker, running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that do not make the test wait."""
    monkeypatch.setattr(static, "POLL_SECONDS", 0.05)


async def test_a_worker_in_the_file_serves_while_it_is_healthy(router: Running) -> None:
    """It joins once it says that it serves, and what it serves; it leaves when it is gone."""
    async with running(FakeWorker("a")) as server:
        worker = StaticWorker(address=f"127.0.0.1:{server.port}", endpoint="static.backend.embed")
        await router.stack.enter_async_context(static.polled(router.fleet, [worker]))
        await router.until(lambda: bool(router.fleet.workers()))

        assert (await router.embed("x", model="a")).embeddings
        assert router.fleet.workers()[0].place[0] == "static.backend.embed"
        assert router.fleet.models["a"].dimensions == 8
    await router.until(lambda: not router.fleet.workers())

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.embed("x", model="a")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_worker_that_is_not_there_yet_is_waited_for(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router starts before its workers, and tries again."""
    async with running(FakeWorker("a")) as server:
        await server.set_serving(False)
        worker = StaticWorker(address=f"127.0.0.1:{server.port}", endpoint="static.backend.embed")
        await router.stack.enter_async_context(static.polled(router.fleet, [worker]))
        assert router.fleet.workers() == []

        await server.set_serving()
        await router.until(lambda: bool(router.fleet.workers()))
