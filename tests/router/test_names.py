"""Aliases, canaries, and what ModelService tells (ListModels, WatchWorkers)."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from router.config import Config, load
from tensorway.flags import BadFlag
from tensorway.v1 import model_pb2
from tests.router.conftest import Running, names, routing
from tests.router.fakes import FakeWorker, running


async def test_an_alias_reaches_its_model_and_the_answer_has_the_requested_name() -> None:
    """The worker sees its own name, the caller theirs; scattered batches too."""
    async with routing(Config(aliases={"openai-name": {"a": 1}})) as router:
        workers = [await router.add(FakeWorker("a"), endpoint=f"t.w{i}.e") for i in range(2)]

        single = await router.embed("x", model="openai-name")
        batch = await router.embed(*map(str, range(64)), model="openai-name")

    assert single.model == batch.model == "openai-name"
    assert len(batch.embeddings) == 64
    assert {request.model for worker in workers for request in worker.requests} == {"a"}


async def test_an_alias_that_the_worker_declares_is_known(router: Running) -> None:
    """A worker's other names work like configured ones."""
    worker = FakeWorker("a")
    worker.model.aliases.append("other")
    await router.add(worker)

    assert (await router.embed("x", model="other")).model == "other"


async def test_weights_share_an_alias_between_models() -> None:
    """A canary gets its part of the requests."""
    async with routing(Config(aliases={"name": {"old": 9, "new": 1}})) as router:
        old = await router.add(FakeWorker("old"), endpoint="t.old.e")
        new = await router.add(FakeWorker("new"), endpoint="t.new.e")
        for _ in range(300):
            await router.embed("x", model="name")

    assert len(old.requests) + len(new.requests) == 300
    assert 10 <= len(new.requests) <= 60


async def test_a_model_of_weight_0_gets_nothing() -> None:
    """Also when no other model of the alias has a worker: the operator took it out."""
    async with routing(Config(aliases={"name": {"old": 1, "new": 0}})) as router:
        new = await router.add(FakeWorker("new"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("x", model="name")

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not new.requests


async def test_an_alias_avoids_models_without_workers() -> None:
    """While one of its models is down, the other one answers."""
    async with routing(Config(aliases={"name": {"gone": 99, "here": 1}})) as router:
        await router.add(FakeWorker("here"))

        for _ in range(5):
            assert (await router.embed("x", model="name")).model == "name"


async def test_an_alias_without_any_worker_is_unavailable() -> None:
    """The name is configured, so it is known."""
    async with routing(Config(aliases={"name": {"gone": 1}})) as router:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.embed("x", model="name")

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_models_are_listed_with_aliases_and_live_workers() -> None:
    """Also a model whose workers are all gone."""
    async with routing(Config(aliases={"name": {"b": 1}})) as router:
        async with running(FakeWorker("a"), router.address, endpoint="t.a.e"):
            await router.until(lambda: bool(router.fleet.workers()))
        for i in range(2):
            await router.add(FakeWorker("b"), endpoint=f"t.b{i}.e")

        listed = await router.models.ListModels(model_pb2.ListModelsRequest())
        one = await router.models.GetModel(model_pb2.GetModelRequest(model="name"))

    assert names(listed) == ["a", "b"]
    assert [model.live_workers for model in listed.models] == [0, 2]
    assert list(listed.models[1].aliases) == ["name"]
    assert one.model == listed.models[1]
    assert one.model.dimensions == 8
    assert one.model.create_time.seconds > 0


async def test_get_model_of_an_unknown_name_is_not_found(router: Running) -> None:
    """As for a request."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.models.GetModel(model_pb2.GetModelRequest(model="x"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "known: none" in str(caught.value.details())


async def test_workers_are_watched_as_they_come_drain_and_go(router: Running) -> None:
    """The whole list at once, and again whenever it changes."""
    watch = router.models.WatchWorkers(model_pb2.WatchWorkersRequest())
    assert list((await watch.read()).workers) == []

    async with running(FakeWorker(), router.address) as server:
        (worker,) = (await watch.read()).workers
        assert worker.address == f"127.0.0.1:{server.port}"
        assert worker.endpoint == "test.backend.embed"
        assert worker.state == model_pb2.WORKER_STATE_READY
        assert worker.worker_id
        listed = await router.models.ListWorkers(model_pb2.ListWorkersRequest(model="fake"))
        assert [one.worker_id for one in listed.workers] == [worker.worker_id]

    assert (await watch.read()).workers[0].state == model_pb2.WORKER_STATE_DRAINING
    assert list((await watch.read()).workers) == []
    watch.cancel()


async def test_an_alias_of_several_models_shows_the_workers_of_all() -> None:
    """Its model is the likeliest one."""
    async with routing(Config(aliases={"name": {"a": 1, "b": 9}})) as router:
        for model in "ab":
            await router.add(FakeWorker(model), endpoint=f"t.{model}.e")

        listed = await router.models.ListWorkers(model_pb2.ListWorkersRequest(model="name"))
        one = await router.models.GetModel(model_pb2.GetModelRequest(model="name"))

    assert sorted(worker.model.name for worker in listed.workers) == ["a", "b"]
    assert one.model.name == "b"


async def test_a_watch_of_one_model_is_silent_about_others(router: Running) -> None:
    """Each message is a change."""
    await router.add(FakeWorker("a"), endpoint="t.a.e")
    watch = router.models.WatchWorkers(model_pb2.WatchWorkersRequest(model="a"))
    assert len((await watch.read()).workers) == 1

    await router.add(FakeWorker("b"), endpoint="t.b.e")
    await router.add(FakeWorker("a"), endpoint="t.a2.e")

    assert len((await watch.read()).workers) == 2
    watch.cancel()


async def test_without_direct_mode_no_address_is_told() -> None:
    """Clients that must not pass the router by do not learn where workers are."""
    async with routing(direct=False) as router:
        await router.add()

        listed = await router.models.ListWorkers(model_pb2.ListWorkersRequest())

    assert [worker.address for worker in listed.workers] == [""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[aliases]\na = {}", "aliases.a: expected a model with a weight above 0"),
        ("[aliases]\na = { m = -1 }", "Expected `float` >= 0"),
        ("[[workers]]\naddress = 'x'\nendpoint = 'a.b.c'", "address"),
        ("[[workers]]\naddress = 'x:1'\nendpoint = 'a.b'", "endpoint"),
        ("policy = 'x'", "unknown field `policy`"),
        ("[aliases", "--config"),
    ],
)
def test_a_bad_configuration_stops_the_start(tmp_path: Path, text: str, problem: str) -> None:
    """The message names the flag, the file and the place."""
    file = tmp_path / "router.toml"
    file.write_text(text)

    with pytest.raises(BadFlag, match=r"^--config: ") as caught:
        load(file)

    assert problem in str(caught.value)


def test_a_good_configuration(tmp_path: Path) -> None:
    """Both tables are optional."""
    file = tmp_path / "router.toml"
    file.write_text(
        "[aliases]\n"
        "canary = { minilm = 9, minilm-v2 = 1 }\n"
        "[[workers]]\n"
        'address = "10.0.0.5:50052"\n'
        'endpoint = "search.backend.embed"\n'
    )

    config = load(file)

    assert config.aliases == {"canary": {"minilm": 9.0, "minilm-v2": 1.0}}
    assert config.workers[0].address == "10.0.0.5:50052"
    assert load(None) == Config()
