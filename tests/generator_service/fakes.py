"""An engine that answers with the prompt it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import ml_dtypes
import numpy as np

from generator_service.engine import EngineDied, EngineInfo, Params, Piece
from tensorway.prompt import ModelShape, Prompt

WIDTH = 8
INFO = EngineInfo(
    names=("echo", "alias"),
    root="nowhere",
    shape=ModelShape(WIDTH, 100, 64, np.dtype(ml_dtypes.bfloat16)),
    max_logprobs=5,
    has_tokenizer=True,
)


class EchoEngine:
    """Generates the prompt's own tokens, one piece each, up to `max_tokens`."""

    def __init__(self, delay: float = 0.0, info: EngineInfo = INFO) -> None:
        self.info = info
        self.delay = delay
        self.running = 0
        self.prompts: list[Prompt] = []
        self.params: list[Params] = []
        self.dead = False

    async def generate(self, prompt: Prompt, params: Params) -> AsyncGenerator[Piece, None]:
        """The prompt, token by token."""
        self.prompts.append(prompt)
        self.params.append(params)
        self.running += 1
        try:
            tokens = prompt.token_ids.tolist()[: params.sampling.get("max_tokens", 16)]
            for token in tokens[:-1]:
                yield Piece([token], text=f"{token} ")
                await asyncio.sleep(self.delay)
            yield Piece([tokens[-1]], f"{tokens[-1]}", finish_reason="length")
        finally:
            self.running -= 1

    def check(self) -> None:
        """Raise when told to be dead."""
        if self.dead:
            raise EngineDied("told to die")

    def close(self) -> None:
        """Nothing to end."""
