"""ModelService of a process that serves one model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tensorway.errors import NotFound, Unavailable
from tensorway.handlers import Context, Service
from tensorway.registration import Load
from tensorway.v1 import model_pb2

_WATCH_SECONDS = 1.0


class SingleModel:
    """Answers for one worker, once :meth:`ready` said what it is."""

    def __init__(self) -> None:
        self._worker: model_pb2.Worker | None = None
        self._load: Load = model_pb2.WorkerLoad

    def ready(self, worker: model_pb2.Worker, load: Load) -> None:
        """From now on, answer with this worker."""
        self._worker, self._load = worker, load

    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        """The model, or none while it loads."""
        del request, context
        return model_pb2.ListModelsResponse(models=[w.model for w in self._workers("")])

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        """The model under any of its names."""
        del context
        if self._worker is None:
            raise Unavailable("the model is loading", reason="LOADING")
        if not self._is(request.model):
            known = self._worker.model.name
            raise NotFound(f"model: {request.model!r} is not served here; known: {known}")
        return model_pb2.GetModelResponse(model=self._worker.model)

    async def ListWorkers(
        self, request: model_pb2.ListWorkersRequest, context: Context
    ) -> model_pb2.ListWorkersResponse:
        """The worker itself, if it serves the model."""
        del context
        return model_pb2.ListWorkersResponse(workers=self._workers(request.model))

    async def WatchWorkers(
        self, request: model_pb2.WatchWorkersRequest, context: Context
    ) -> AsyncIterator[model_pb2.WatchWorkersResponse]:
        """The worker itself, whenever it changed."""
        del context
        last: list[model_pb2.Worker] | None = None
        while True:
            if (workers := self._workers(request.model)) != last:
                yield model_pb2.WatchWorkersResponse(workers=workers)
                last = workers
            await asyncio.sleep(_WATCH_SECONDS)

    def service(self) -> Service:
        """The gRPC service."""
        descriptor = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
        return Service(descriptor, self, lasting=frozenset({"WatchWorkers"}))

    def _is(self, name: str) -> bool:
        model = self._worker.model if self._worker else model_pb2.Model()
        return name in (model.name, *model.aliases)

    def _workers(self, name: str) -> list[model_pb2.Worker]:
        if self._worker is None or (name and not self._is(name)):
            return []
        worker = model_pb2.Worker()
        worker.CopyFrom(self._worker)
        worker.load.CopyFrom(self._load())
        return [worker]
