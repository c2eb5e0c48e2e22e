"""What the worker says of itself: ModelService, and its registration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from embed_worker.engine import EngineInfo
from embed_worker.servicer import Holder
from tensorway.errors import NotFound
from tensorway.handlers import Context
from tensorway.v1 import model_pb2

_TASKS = {
    "embed": model_pb2.TASK_EMBED,
    "token_embed": model_pb2.TASK_TOKEN_EMBED,
    "sparse_embed": model_pb2.TASK_SPARSE_EMBED,
    "classify": model_pb2.TASK_CLASSIFY,
    "score": model_pb2.TASK_SCORE,
}
_WATCH_SECONDS = 1.0


def describe(info: EngineInfo) -> model_pb2.Model:
    """The model, as routers and callers see it."""
    name, *aliases = info.model_names
    return model_pb2.Model(
        name=name,
        aliases=aliases,
        tasks=[_TASKS[task] for task in info.tasks],
        dimensions=info.dimensions,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        is_matryoshka=info.is_matryoshka,
        matryoshka_dimensions=info.matryoshka_dimensions,
        prompt_names=sorted(info.prompts),
        dtype=info.dtype,
        live_workers=1,
        root=info.root,
    )


class ModelServicer:
    """ModelService for this worker's one model."""

    def __init__(self, holder: Holder, worker: model_pb2.Worker) -> None:
        self._holder = holder
        self._worker = worker

    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        """The model, or none while it loads."""
        del request, context
        models = [self._worker.model] if self._holder.loaded else []
        return model_pb2.ListModelsResponse(models=models)

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        """The model under any of its names."""
        del context
        model = self._holder.model
        if request.model not in model.info.model_names:
            raise NotFound(f"model: {request.model!r} is not served here; known: {model.name}")
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

    def _workers(self, model: str) -> list[model_pb2.Worker]:
        loaded = self._holder.loaded
        if loaded is None or (model and model not in loaded.info.model_names):
            return []
        self._worker.load.CopyFrom(loaded.load())
        return [model_pb2.Worker.FromString(self._worker.SerializeToString())]
