"""GET /v1/models and /v1/models/{model}: what may be asked for."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tensorway.v1 import model_pb2

from .render import small
from .upstream import Upstream


class Models:
    """The handlers."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def list(self, request: Request) -> Response:
        """Every model, under its own name and under each alias."""
        message = model_pb2.ListModelsRequest()
        answer = await self._upstream.call("ListModels", message, request.headers)
        cards = [card(m, name) for m in answer.models for name in (m.name, *m.aliases)]
        return small({"object": "list", "data": cards})

    async def get(self, request: Request) -> Response:
        """One model, by the name or alias in the path."""
        name = request.path_params["model"]
        message = model_pb2.GetModelRequest(model=name)
        answer = await self._upstream.call("GetModel", message, request.headers)
        return small(card(answer.model, name))


def card(model: model_pb2.Model, name: str) -> dict[str, Any]:
    """A model as OpenAI shows it, with what else our clients want to know."""
    return {
        "id": name,
        "object": "model",
        "created": model.create_time.seconds,
        "owned_by": "tensorway",
        "root": model.root or model.name,
        "parent": None if name == model.name else model.name,
        "max_model_len": model.max_model_len,
        "dimensions": model.dimensions,
        "tasks": [model_pb2.Task.Name(task).removeprefix("TASK_").lower() for task in model.tasks],
        "live_workers": model.live_workers,
    }
