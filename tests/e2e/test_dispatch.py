"""Dispatch among real engines, proven from outside by the workers' own counters (R4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from tensorway.commands import demo
from tensorway.v1 import embedding_pb2, embedding_pb2_grpc
from tests.conftest import Up, up
from tests.dispatch_check import burst

pytestmark = pytest.mark.vllm

# The pooler of the second model: its vectors are not those of the first one.
FIRST_TOKEN = '{"pooling_type": "CLS"}'


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """By `tensorway up`: workers 0 and 1 of one model, worker 2 of another."""
    folder = tmp_path_factory.mktemp("dispatch")
    (workers,) = demo.minilm(0, 0).workers
    second = [*workers.args, "--pooler-config", FIRST_TOKEN]
    second[second.index(demo.MODEL)] = "second"
    pools = (pool(workers.model, 2, workers.args), pool(workers.model, 1, second))
    (folder / "fleet.toml").write_text("".join(pools))
    args = (str(folder / "fleet.toml"), "--metrics-port", "0")
    with up(folder, "--fleet", *args, env=workers.env) as fleet:
        yield fleet
    assert fleet.process.returncode == 0, fleet.log.read_text()


def pool(model: str, count: int, args: object) -> str:
    """Workers of one model, in a fleet file."""
    return f"[[workers]]\nmodel = {json.dumps(model)}\ncount = {count}\nargs = {json.dumps(args)}\n"


def metrics(fleet: Up) -> list[str]:
    """Metrics addresses of the workers, by index."""
    return [worker.metrics_address for worker in fleet.workers()]


def send(fleet: Up, model: str, count: int) -> np.ndarray:
    """A burst of so many requests at once over one channel; their vectors."""
    with grpc.insecure_channel(fleet.grpc) as channel, ThreadPoolExecutor(count) as threads:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_pb2.EmbedRequest(model=model, texts={"texts": ["hello world"]})
        answers = list(threads.map(lambda _: stub.Embed(request, timeout=30), range(count)))
    return np.array([answer.embeddings[0].values for answer in answers])


def test_a_burst_is_spread_over_the_engines_of_one_model(engines: Up) -> None:
    """20 requests: both workers of the model have work, the other model's has none."""
    with burst(metrics(engines), expected={0, 1}, minimum=20):
        send(engines, demo.MODEL, 20)


def test_bursts_for_two_models_reach_each_its_own(engines: Up) -> None:
    """10 requests each, each burst checked for itself; the vectors are of two models."""
    with burst(metrics(engines), expected={0, 1}, minimum=10):
        first = send(engines, demo.MODEL, 10)
    with burst(metrics(engines), expected={2}, minimum=10):
        second = send(engines, "second", 10)

    np.testing.assert_allclose(first, first[:1].repeat(10, 0), atol=1e-5)
    np.testing.assert_allclose(second, second[:1].repeat(10, 0), atol=1e-5)
    assert np.abs(first[0] - second[0]).max() > 0.01
