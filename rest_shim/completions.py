"""POST /v1/chat/completions and /v1/completions: tokens of a generator, whole or as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tensorway import logs
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2, model_pb2

from . import prompts
from .chat import (
    ChatRequest,
    CompletionRequest,
    Generation,
    check,
    check_chat,
    flatten,
    one_prompt,
    to_sampling,
)
from .events import CHAT, TEXT, Shape, Writer
from .logprobs import ChatLogprobs, TextLogprobs
from .schema import decode, decoder
from .upstream import Upstream

# What OpenAI and vLLM generate at most when a completion does not say.
_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Images:
    """Who encodes images, and what stands for one in a prompt."""

    encoder: str | None
    token: str


class Completions:
    """The handlers; ``strict`` refuses fields that the API does not know."""

    def __init__(
        self,
        upstream: Upstream,
        prompters: Mapping[str, prompts.Prompter],
        images: Images,
        *,
        strict: bool,
    ) -> None:
        self._upstream = upstream
        self._prompters = prompters
        self._images = images
        self._chat = decoder(ChatRequest, strict=strict)
        self._completion = decoder(CompletionRequest, strict=strict)

    async def chat(self, request: Request) -> Response:
        """The assistant's turn in a chat, whole or as it comes."""
        body = decode(self._chat, await request.body())
        prompter = prompts.find(self._prompters, body.model)
        check(body)
        messages, images = flatten(body.messages, self._images.token)
        check_chat(body, len(images), self._images.encoder)
        prompt = await asyncio.to_thread(prompter.chat, messages)
        limit = body.max_completion_tokens or body.max_tokens
        limit = limit or await self._room(body.model, len(prompt), request.headers)
        top = (body.top_logprobs or 0) if body.logprobs else None
        shape = CHAT if top is None else CHAT.having(ChatLogprobs(prompter.piece, top))
        params = to_sampling(body, limit, top)
        return await self._answer(body, shape, prompt, images, params, request.headers)

    async def complete(self, request: Request) -> Response:
        """What follows a text or token ids, whole or as it comes."""
        body = decode(self._completion, await request.body())
        prompter = prompts.find(self._prompters, body.model)
        check(body)
        prompt = one_prompt(body)
        if isinstance(prompt, str):
            prompt = await asyncio.to_thread(prompter.text, prompt)
        limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        shape = TEXT if body.logprobs is None else TEXT.having(TextLogprobs(prompter.piece))
        params = to_sampling(body, limit, body.logprobs)
        return await self._answer(body, shape, prompt, [], params, request.headers)

    async def _answer(
        self,
        body: Generation,
        shape: Shape,
        prompt: Sequence[int],
        images: Sequence[handoff_pb2.ImageInput],
        params: generator_pb2.SamplingParams,
        headers: Headers,
    ) -> Response:
        call = self._call(body.model, prompt, images, params, headers)
        writer = Writer(shape, logs.request_id.get(), body.model, int(time.time()))
        if not body.stream:
            return writer.whole([part async for part in call])
        # The first part decides the status: an error before it is an answer of its own.
        first = await anext(call)
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = writer.events(_resumed(first, call), with_usage=with_usage)
        return StreamingResponse(events, media_type="text/event-stream")

    def _call(
        self,
        model: str,
        prompt: Sequence[int],
        images: Sequence[handoff_pb2.ImageInput],
        params: generator_pb2.SamplingParams,
        headers: Headers,
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        if not images:
            start = generator_pb2.GenerateStart(
                model=model, prompt_token_ids=prompt, sampling_params=params, return_text=True
            )
            return self._upstream.generate(start, headers)
        request = encoder_pb2.EncoderServiceGenerateRequest(
            model=self._images.encoder or "",
            target_model=model,
            prompt_token_ids=prompt,
            images=images,
            sampling_params=params,
            return_text=True,
        )
        return self._upstream.generate_with_images(request, headers)

    async def _room(self, model: str, prompt: int, headers: Headers) -> int:
        """Tokens that fit after a prompt."""
        message = model_pb2.GetModelRequest(model=model)
        answer = await self._upstream.call("GetModel", message, headers)
        return max(1, int(answer.model.max_model_len) - prompt)


async def _resumed(first: Any, rest: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part
