"""Calls of the client to encoders and generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeAlias, TypedDict

import grpc

from tensorway._client_calls import Calls, translated
from tensorway.errors import Unavailable
from tensorway.handoff import frames, header, stream
from tensorway.handoff.features import Features
from tensorway.options import MIB
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2

Image: TypeAlias = bytes | str
"""An encoded image (PNG, JPEG, ...), or its `data:` or http(s) URL."""

_ENCODER, _GENERATOR = "/tensorway.v1.EncoderService", "/tensorway.v1.GeneratorService"
_MAX_RESULT_BYTES = 1024 * MIB


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen and when to stop; see SamplingParams of the contract."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logprobs: int


class Handoff:
    """Encoding, and generating with or without images."""

    def __init__(self, channel: grpc.aio.Channel, calls: Calls) -> None:
        self._calls = calls
        # Chunks stay bytes: they are written into the tensor without being parsed.
        self._encode: Any = channel.unary_stream(
            f"{_ENCODER}/Encode", encoder_pb2.EncodeRequest.SerializeToString, None
        )
        self._answer_images: Any = channel.unary_stream(
            f"{_ENCODER}/Generate",
            encoder_pb2.EncoderServiceGenerateRequest.SerializeToString,
            generator_pb2.GenerateResponse.FromString,
        )
        self._answer: Any = channel.stream_stream(
            f"{_GENERATOR}/Generate",
            generator_pb2.GenerateRequest.SerializeToString,
            generator_pb2.GenerateResponse.FromString,
        )

    async def encode(
        self, images: Sequence[Image], model: str, target_model: str, timeout: float
    ) -> Features:
        """One result for all images, checked as a generator checks it."""
        request = encoder_pb2.EncodeRequest(
            model=model,
            images=[_to_input(image) for image in images],
            target_model=target_model,
            accepted_versions=header.VERSIONS,
        )
        with translated():
            call = self._encode(request, timeout=timeout, metadata=self._calls.metadata())
            return await _assemble(call, len(images))

    async def generate(
        self,
        prompt: Sequence[int],
        model: str,
        images: Sequence[Image],
        encoder: str,
        timeout: float,
        sampling: SamplingOptions,
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        """The answer as it comes."""
        params = generator_pb2.SamplingParams(**sampling)
        if images:
            request = encoder_pb2.EncoderServiceGenerateRequest(
                model=encoder,
                target_model=model,
                prompt_token_ids=prompt,
                images=[_to_input(image) for image in images],
                sampling_params=params,
                return_text=True,
            )
            call = self._answer_images(request, timeout=timeout, metadata=self._calls.metadata())
        else:
            start = generator_pb2.GenerateStart(
                model=model, prompt_token_ids=prompt, sampling_params=params, return_text=True
            )
            call = self._answer(_once(start), timeout=timeout, metadata=self._calls.metadata())
        try:
            with translated():
                async for response in call:
                    yield response
        finally:
            call.cancel()


async def _assemble(call: Any, images: int) -> Features:
    assembly, layout = None, None
    async for frame in call:
        match frames.read(frame):
            case frames.Chunk() as chunk if assembly:
                assembly.add(chunk)
            case handoff_pb2.EncoderResultEnd() as end if assembly and layout:
                features = assembly.finish(end)
                await asyncio.to_thread(stream.check_digests, features, layout)
                return features
            case _:
                message = handoff_pb2.EncoderResultChunk.FromString(frame)
                layout = header.read(message.header, header.Accepts(_MAX_RESULT_BYTES, images))
                assembly = stream.Assembly(layout)
    raise Unavailable("the encoder's answer ended before its end")


async def _once(start: generator_pb2.GenerateStart) -> AsyncIterator[generator_pb2.GenerateRequest]:
    yield generator_pb2.GenerateRequest(start=start)


def _to_input(image: Image) -> handoff_pb2.ImageInput:
    if isinstance(image, str):
        return handoff_pb2.ImageInput(url=image)
    return handoff_pb2.ImageInput(data=image)
