"""Unary RPCs that only have to reach some worker of their model: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

from google.protobuf.descriptor import ServiceDescriptor

from tensorway import dispatch, envelope
from tensorway.deadline import seconds_left
from tensorway.v1 import model_pb2

from .front import Context, Front

POOLING: Mapping[str, model_pb2.Task.ValueType] = {
    "TokenEmbed": model_pb2.TASK_TOKEN_EMBED,
    "SparseEmbed": model_pb2.TASK_SPARSE_EMBED,
    "Score": model_pb2.TASK_SCORE,
    "Rerank": model_pb2.TASK_SCORE,
    "Classify": model_pb2.TASK_CLASSIFY,
}

GENERATOR: Mapping[str, model_pb2.Task.ValueType] = {"GetModel": model_pb2.TASK_GENERATE}


def passing(
    front: Front,
    service: ServiceDescriptor,
    tasks: Mapping[str, model_pb2.Task.ValueType],
    timeout: float,
) -> SimpleNamespace:
    """A servicer of these methods of a service, each for models with that task."""

    async def answer(
        method: str, task: model_pb2.Task.ValueType, data: bytes, context: Context
    ) -> bytes:
        name, work = envelope.read_named(data).model, envelope.tokens(1, len(data))
        left = seconds_left(context, timeout)
        await front.settled(name, left)
        with front.route(name, task, work, context, left) as route:
            if (model := route.pool.model) != name:
                data = envelope.renamed(data, model)
            response = await dispatch.dispatch(route.pool, data, work, partial(route.unary, method))
            return response if model == name else envelope.renamed(response, name)

    return SimpleNamespace(
        **{
            name: partial(answer, f"/{service.full_name}/{name}", task)
            for name, task in tasks.items()
        }
    )
