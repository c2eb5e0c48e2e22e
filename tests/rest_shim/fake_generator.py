"""A generator, and an encoder in front of it, that answer with the prompt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

from tensorway import errors
from tensorway.v1 import (
    common_pb2,
    encoder_pb2,
    encoder_pb2_grpc,
    generator_pb2,
    generator_pb2_grpc,
)


def _candidates(token: int, count: int) -> list[generator_pb2.TokenLogprob]:
    """The token, as the second likeliest, then the likeliest ones: 0, the token, 1, ..."""
    chosen = generator_pb2.TokenLogprob(token_id=token, logprob=-1, rank=2)
    others = [
        generator_pb2.TokenLogprob(token_id=place, logprob=-math.inf if place else 0, rank=rank)
        for place, rank in ((0, 1), (1, 3), (2, 4))
        if rank <= count
    ]
    return [chosen, *others]


class FakeGenerator(
    generator_pb2_grpc.GeneratorServiceServicer, encoder_pb2_grpc.EncoderServiceServicer
):
    """Both services; the fields say how they answer and what they saw."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.error: errors.TensorwayError | None = None
        self.error_after = 0
        self.endless = False
        self.ended = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The prompt again, a token at a time."""
        start = request
        if not isinstance(request, encoder_pb2.EncoderServiceGenerateRequest):
            start = (await anext(aiter(request))).start
        self.requests.append(start)
        try:
            async for answer in self._answers(start):
                yield answer
        finally:
            self.ended.set()

    async def _answers(self, start: Any) -> AsyncIterator[Any]:
        ids = start.prompt_token_ids
        for place, token in enumerate(ids):
            if self.error and place == self.error_after:
                raise self.error
            answer = generator_pb2.GenerateResponse(token_ids=[token], text=f"<{token}>")
            if start.sampling_params.HasField("logprobs"):
                answer.logprobs.add(candidates=_candidates(token, start.sampling_params.logprobs))
            if place == len(ids) - 1 and not self.endless:
                answer.finish_reason = generator_pb2.FINISH_REASON_STOP
                counts = {"prompt_tokens": len(ids), "completion_tokens": len(ids)}
                answer.usage.CopyFrom(common_pb2.Usage(**counts, total_tokens=2 * len(ids)))
            yield answer
        while self.endless:
            await asyncio.sleep(0.01)
            yield generator_pb2.GenerateResponse(token_ids=[0], text="<0>")
