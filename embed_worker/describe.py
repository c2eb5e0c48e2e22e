"""What the worker says of itself to routers and callers."""

from __future__ import annotations

from embed_worker.engine import EngineInfo
from tensorway.v1 import model_pb2

_TASKS = {
    "embed": model_pb2.TASK_EMBED,
    "token_embed": model_pb2.TASK_TOKEN_EMBED,
    "sparse_embed": model_pb2.TASK_SPARSE_EMBED,
    "classify": model_pb2.TASK_CLASSIFY,
    "score": model_pb2.TASK_SCORE,
}


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
