"""A router without models behind it: the same contract, checks and vectors by a rule."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from tensorway import errors, wire
from tensorway.handlers import Service
from tensorway.v1 import (
    common_pb2,
    embedding_pb2,
    embedding_pb2_grpc,
    encoder_pb2,
    generator_pb2,
    model_pb2,
    model_pb2_grpc,
    pooling_pb2,
    pooling_pb2_grpc,
)
from tests.rest_shim.fake_generator import FakeGenerator

VOCAB = 1000
MODEL = "org/fake-embed"
ALIAS = "minilm"


def vector(value: str | list[int], width: int = 8) -> np.ndarray:
    """The unit vector [width] float32 that the fake answers with."""
    seed = int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8])
    values = np.random.default_rng(seed).standard_normal(width)
    return (values / np.linalg.norm(values)).astype("<f4")


@dataclass
class FakeRouter(embedding_pb2_grpc.EmbeddingServiceServicer, model_pb2_grpc.ModelServiceServicer):
    """EmbeddingService and ModelService; the fields say how it answers and what it saw."""

    width: int = 8
    error: BaseException | None = None
    """Raised by Embed."""
    errors_left: float = math.inf
    """How many more times it is raised."""
    abort: grpc.StatusCode | None = None
    """Every Embed ends with this code, as a server without our details would end it."""
    seconds: float = 0.0
    """How long an Embed takes."""
    generator: FakeGenerator = field(default_factory=FakeGenerator)
    packed: bytes = b""
    """The bytes of every vector in another element type."""
    break_stream_after: int | None = None
    """Answers after which a stream breaks."""
    breaks_left: int = 1
    """How many more streams break."""
    requests: list[embedding_pb2.EmbedRequest] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    remaining: float = 0.0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Embed(self, request: embedding_pb2.EmbedRequest, context: Any) -> Any:
        """One vector for each input."""
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        self.remaining = context.time_remaining()
        self.started.set()
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.abort:
            await context.abort(self.abort, "something inside")
        if self.error and self.errors_left > 0:
            self.errors_left -= 1
            raise self.error
        return self._answer(request)

    async def EmbedStream(
        self, requests: AsyncIterator[embedding_pb2.EmbedStreamRequest], context: Any
    ) -> AsyncIterator[embedding_pb2.EmbedStreamResponse]:
        """Answers as they come; a failing request does not end the stream."""
        answers = 0
        async for item in requests:
            if answers == self.break_stream_after and self.breaks_left:
                self.breaks_left -= 1
                raise errors.Unavailable("restarting")
            answers += 1
            answer = embedding_pb2.EmbedStreamResponse(request_id=item.request.request_id)
            try:
                wired = await self.Embed(item.request, context)
                answer.response.ParseFromString(wired.SerializeToString())
            except errors.TensorwayError as error:
                status = errors.to_status(error).SerializeToString()
                answer.error.CopyFrom(common_pb2.Status.FromString(status))
            yield answer

    async def ListModels(self, request: Any, context: Any) -> model_pb2.ListModelsResponse:
        """The one model."""
        return model_pb2.ListModelsResponse(models=[_model(self.width)])

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Any
    ) -> model_pb2.GetModelResponse:
        """The one model, by name or alias."""
        _check_model(request.model)
        return model_pb2.GetModelResponse(model=_model(self.width))

    def services(self) -> tuple[Service, ...]:
        """The services, to be given to a server."""
        pooling = pooling_pb2.DESCRIPTOR.services_by_name["PoolingService"]
        embed = (embedding_pb2.EmbedRequest.FromString, wire.EmbedResponse.SerializeToString)
        embedding = embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
        model = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
        generator = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
        encoder = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
        return (
            Service(embedding, self, codecs={"Embed": embed}),
            Service(model, self),
            Service(pooling, FakePooling()),
            Service(generator, self.generator),
            Service(encoder, self.generator),
        )

    def _answer(self, request: embedding_pb2.EmbedRequest) -> Any:
        _check_model(request.model)
        inputs = _inputs(request)
        answer = wire.EmbedResponse(model=request.model, dimensions=self.width)
        for index, value in enumerate(inputs):
            values = b"" if self.packed else vector(value, self.width).tobytes()
            answer.embeddings.add(index=index, values=values, packed=self.packed)
        answer.usage.prompt_tokens = answer.usage.total_tokens = sum(map(len, inputs))
        return answer


def _named(documents: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"documents[{index}]", text) for index, text in enumerate(documents)]


class FakePooling(pooling_pb2_grpc.PoolingServiceServicer):
    """PoolingService whose numbers are lengths of texts."""

    async def TokenEmbed(self, request: Any, context: Any) -> pooling_pb2.TokenEmbedResponse:
        """Two numbers for each character or id."""
        answer = pooling_pb2.TokenEmbedResponse(model=request.model, dimensions=2)
        for index, value in enumerate(_inputs(request)):
            numbers = [number for place in range(len(value)) for number in (place, 0.1)]
            answer.embeddings.add(index=index, tokens=len(value), values=numbers)
        answer.usage.prompt_tokens = answer.usage.total_tokens = 3
        return answer

    async def SparseEmbed(self, request: Any, context: Any) -> pooling_pb2.SparseEmbedResponse:
        """One term for each input."""
        answer = pooling_pb2.SparseEmbedResponse(model=request.model)
        for index, value in enumerate(_inputs(request)):
            answer.embeddings.add(index=index, indices=[len(value)], values=[0.1])
        return answer

    async def Score(self, request: Any, context: Any) -> pooling_pb2.ScoreResponse:
        """A tenth of the difference of the lengths; none of them may be 0."""
        for name, text in (("query", request.query), *_named(request.documents)):
            if not text:
                raise errors.InvalidArgument(f"{name}: expected a text, got none", field=name)
        usage = common_pb2.Usage(prompt_tokens=5, total_tokens=5)
        scores = [(len(text) - len(request.query)) / 10 for text in request.documents]
        return pooling_pb2.ScoreResponse(model=request.model, scores=scores, usage=usage)

    async def Rerank(self, request: Any, context: Any) -> pooling_pb2.RerankResponse:
        """The longest documents first."""
        answer = pooling_pb2.RerankResponse(model=request.model, request_id="r-1")
        order = sorted(range(len(request.documents)), key=lambda i: -len(request.documents[i]))
        for index in order[: request.top_n if request.HasField("top_n") else None]:
            text = request.documents[index] if request.return_documents else ""
            score = len(request.documents[index]) / 10
            answer.results.add(index=index, relevance_score=score, document=text)
        return answer

    async def Classify(self, request: Any, context: Any) -> pooling_pb2.ClassifyResponse:
        """Two classes."""
        answer = pooling_pb2.ClassifyResponse(model=request.model, labels=["short", "long"])
        for index, _value in enumerate(_inputs(request)):
            answer.classifications.add(index=index, label="short", probs=[0.9, 0.1])
        return answer


def _check_model(name: str) -> None:
    if name not in (MODEL, ALIAS, "g"):
        raise errors.NotFound(f"model: {name!r} is not served; known: {MODEL}, {ALIAS}")


def _model(width: int) -> model_pb2.Model:
    model = model_pb2.Model(name=MODEL, aliases=[ALIAS], dimensions=width, max_model_len=512)
    model.create_time.seconds = 1_700_000_000
    model.tasks.append(model_pb2.TASK_EMBED)
    return model


def _inputs(request: embedding_pb2.EmbedRequest) -> list[Any]:
    if request.WhichOneof("input") == "texts":
        path, inputs = "texts.texts", list(request.texts.texts)
    else:
        path, inputs = "tokens.sequences", [list(s.ids) for s in request.tokens.sequences]
    if not inputs:
        raise _invalid(path, "expected at least one input, got none")
    for index, value in enumerate(inputs):
        if not value:
            raise _invalid(f"{path}[{index}]", "expected an input, got an empty one")
        if isinstance(value, list) and max(value) >= VOCAB:
            place = int(np.argmax(np.array(value) >= VOCAB))
            got = f"expected 0 to {VOCAB - 1}, got {value[place]}"
            raise _invalid(f"{path}[{index}].ids[{place}]", got)
    return inputs


def _invalid(path: str, message: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"{path}: {message}", field=path)
