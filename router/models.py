"""ModelService: what the router knows of models and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tensorway.v1 import model_pb2

from .fleet import Fleet
from .front import Context
from .names import Names


class ModelService:
    """Answers from the router's own table.

    With `direct` off, workers are shown without their addresses, so that clients cannot
    pass the router by.
    """

    def __init__(self, fleet: Fleet, names: Names, direct: bool) -> None:
        self._fleet = fleet
        self._names = names
        self._direct = direct

    async def ListModels(
        self,
        request: model_pb2.ListModelsRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> model_pb2.ListModelsResponse:
        """Every model that was ever registered, sorted by name."""
        names = sorted(self._fleet.models)
        return model_pb2.ListModelsResponse(models=[self._model(name) for name in names])

    async def GetModel(
        self,
        request: model_pb2.GetModelRequest,
        context: Context,  # noqa: ARG002
    ) -> model_pb2.GetModelResponse:
        """One model, by name or alias."""
        pool = self._names.pool(request.model)
        return model_pb2.GetModelResponse(model=self._model(pool.model))

    async def ListWorkers(
        self,
        request: model_pb2.ListWorkersRequest,
        context: Context,  # noqa: ARG002
    ) -> model_pb2.ListWorkersResponse:
        """The workers of one model, or of all."""
        return model_pb2.ListWorkersResponse(workers=self._workers(request.model))

    async def WatchWorkers(
        self,
        request: model_pb2.WatchWorkersRequest,
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[model_pb2.WatchWorkersResponse]:
        """The workers now, and again whenever they change."""
        while True:
            changed = self._fleet.changed
            yield model_pb2.WatchWorkersResponse(workers=self._workers(request.model))
            await changed.wait()

    def _model(self, name: str) -> model_pb2.Model:
        model = model_pb2.Model()
        model.CopyFrom(self._fleet.models[name])
        aliases = sorted({*model.aliases, *self._names.aliases(name)})
        del model.aliases[:]
        model.aliases.extend(aliases)
        model.live_workers = len(self._fleet.pools[name].ready())
        return model

    def _workers(self, name: str) -> list[model_pb2.Worker]:
        model = self._names.pool(name).model if name else ""
        return [worker.describe(self._direct) for worker in self._fleet.workers(model)]
