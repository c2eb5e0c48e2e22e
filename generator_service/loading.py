"""The engine's life: loaded beside the event loop, proven, watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

import numpy as np

from generator_service.engine import Engine, EngineDied, Params
from tensorway import prompt
from tensorway.flags import BadFlag
from tensorway.handoff.features import Features
from tensorway.serving import Stop
from tensorway.threads import Threads

T = TypeVar("T")

_WATCH_SECONDS = 1.0
_PLACEHOLDER = 1


async def in_thread(work: Callable[[], T]) -> T:
    """The result of work that cannot be cancelled, and that nobody waits for at exit."""

    def run() -> T:
        try:
            return work()
        except SystemExit:
            raise BadFlag("the engine refused its flags; see its message above") from None

    threads = Threads(1, "load")
    try:
        return await threads.run(run)
    finally:
        threads.close()


async def prove(engine: Engine) -> None:
    """Raise RuntimeError unless a prompt with an image's rows gives a token."""
    shape = engine.info.shape
    rows = np.full((2, shape.hidden_size), 0.01).astype(shape.dtype)
    built = prompt.build([0, _PLACEHOLDER], Features(rows, (0, 2), _PLACEHOLDER), shape)
    params = Params({"max_tokens": 1, "temperature": 0.0})
    async with aclosing(engine.generate(built, params)) as pieces:
        tokens = [token async for piece in pieces for token in piece.token_ids]
    if len(tokens) != 1:
        raise RuntimeError(f"expected one token for a prompt with an image, got {tokens}")


async def watch(engine: Engine, stop: Stop) -> None:
    """Stop the service when the engine died."""
    while True:
        try:
            engine.check()
        except EngineDied as error:
            stop.ask(error)
            return
        await asyncio.sleep(_WATCH_SECONDS)
