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
        """One model, by name or alias; the likeliest one of an alias of several."""
        models = self._names.models(request.model) or [self._names.pool(request.model).model]
        return model_pb2.GetModelResponse(model=self._model(models[0]))

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
        sent: model_pb2.WatchWorkersResponse | None = None
        aliases = self._names.describe()
        while True:
            changed = self._fleet.changed
            workers = self._workers(request.model)
            now = model_pb2.WatchWorkersResponse(workers=workers, aliases=aliases)
            # A change of another model's workers is none of these.
            if now != sent:
                yield now
            sent = now
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
        models = self._names.models(name) if name else [""]
        workers = [worker for model in models for worker in self._fleet.workers(model)]
        workers.sort(key=lambda worker: worker.place)
        return [worker.describe(self._direct) for worker in workers]
