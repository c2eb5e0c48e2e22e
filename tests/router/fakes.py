"""A worker without an engine: a real gRPC server whose vectors depend only on the text.

Also runs as a process of its own (``python -m tests.router.fakes``), to be killed or stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import click
import grpc
import numpy as np

from tensorway import serving
from tensorway.channels import Dialer
from tensorway.errors import InvalidArgument
from tensorway.handlers import Service
from tensorway.lifeline import die_with_parent
from tensorway.options import DialOptions, ListenOptions
from tensorway.registration import registered
from tensorway.v1 import embedding_pb2, model_pb2

WIDTH = 8
POISON = "poison"


def vector(text: str) -> list[float]:
    """The vector of a text: eight float32 numbers that no other text has."""
    digest = hashlib.blake2b(text.encode(), digest_size=4 * WIDTH).digest()
    numbers = np.frombuffer(digest, dtype="<u4").astype(np.float32) / np.float32(2**32)
    return [float(number) for number in numbers]


class FakeWorker:
    """EmbeddingService and ModelService of one model; it counts what it is asked."""

    def __init__(self, model: str = "fake", width: int = WIDTH) -> None:
        self.model = model_pb2.Model(
            name=model, dimensions=width, tasks=[model_pb2.TASK_EMBED], max_model_len=512
        )
        self.delay = 0.0
        """Seconds that each answer takes."""
        self.fails: Exception | None = None
        """Raised instead of answering."""
        self.requests: list[embedding_pb2.EmbedRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.deadlines: list[float] = []
        self.active = 0
        self.cancelled = 0

    async def Embed(self, request: Any, context: Any) -> embedding_pb2.EmbedResponse:
        """One deterministic vector for each text."""
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())
        self.active += 1
        try:
            await asyncio.sleep(self.delay)
            return await self._answer(request, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    async def ListModels(self, request: Any, context: Any) -> model_pb2.ListModelsResponse:
        """The one model."""
        return model_pb2.ListModelsResponse(models=[self.model])

    async def GetModel(self, request: Any, context: Any) -> model_pb2.GetModelResponse:
        """The one model, whatever was asked for."""
        return model_pb2.GetModelResponse(model=self.model)

    async def _answer(self, request: Any, context: Any) -> embedding_pb2.EmbedResponse:
        if self.fails is not None:
            raise self.fails
        texts = list(request.texts.texts) or [str(list(s.ids)) for s in request.tokens.sequences]
        for index, text in enumerate(texts):
            if text == POISON:
                os._exit(1)
            if not text:
                field = f"texts.texts[{index}]"
                raise InvalidArgument(f"{field}: must not be empty", field=field)
        tokens = sum(map(len, texts))
        answer = embedding_pb2.EmbedResponse(
            model=request.model,
            dimensions=WIDTH,
            request_id=request.request_id or dict(context.invocation_metadata())["x-request-id"],
            usage={"prompt_tokens": tokens, "total_tokens": tokens},
        )
        for index, text in enumerate(texts):
            answer.embeddings.add(index=index, values=vector(text))
        return answer


def services(worker: FakeWorker) -> list[Service]:
    """What the worker offers."""
    embedding = embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
    models = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
    return [Service(embedding, _Both(worker)), Service(models, _Both(worker))]


class _Both:
    """The worker, with the methods it does not have answered as unimplemented."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name, self._unimplemented)

    async def _unimplemented(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in the fake")


@asynccontextmanager
async def running(
    worker: FakeWorker, *routers: str, endpoint: str = "test.backend.embed", grace: float = 1.0
) -> AsyncIterator[serving.Server]:
    """The worker's real server, registered with the routers."""
    dialer = Dialer(DialOptions())
    async with AsyncExitStack() as stack:
        options = ListenOptions(grace=grace)
        server = await stack.enter_async_context(serving.Server(options, services(worker)))
        await server.set_serving()
        registration = model_pb2.Worker(
            endpoint=endpoint, address=f"127.0.0.1:{server.port}", model=worker.model
        )
        load = lambda: model_pb2.WorkerLoad(requests=worker.active)  # noqa: E731
        await stack.enter_async_context(registered(routers, dialer, registration, load))
        yield server


@click.command()
@click.argument("router")
@click.option("--model", default="fake")
@click.option("--endpoint", default="test.backend.embed")
@click.option("--delay", default=0.0)
def main(router: str, model: str, endpoint: str, delay: float) -> None:
    """Run a fake worker until it is told to stop."""
    # A test run that crashes must leave nothing behind.
    die_with_parent(os.getppid())
    worker = FakeWorker(model)
    worker.delay = delay

    async def run(stop: serving.Stop) -> None:
        async with running(worker, router, endpoint=endpoint, grace=5.0):
            await stop.wait()

    serving.run(run)


if __name__ == "__main__":
    main()
