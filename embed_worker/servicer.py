"""EmbeddingService on one model: check, take a permit, tokenise, run, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from embed_worker import answers, checks
from embed_worker.engine import Params
from embed_worker.model import Model
from tensorway import logs, telemetry
from tensorway.envelope import EmbedStreamResponse
from tensorway.errors import Unavailable, to_status
from tensorway.handlers import Context, Service, translate
from tensorway.streams import answer_each
from tensorway.v1 import embedding_pb2

_EMBEDDING = embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]


class Holder:
    """The model, once it is loaded and proven."""

    def __init__(self) -> None:
        self.loaded: Model | None = None

    @property
    def model(self) -> Model:
        """The model; raises Unavailable while there is none."""
        if self.loaded is None:
            raise Unavailable("the model is loading", reason="LOADING")
        return self.loaded


class EmbeddingServicer:
    """EmbeddingService."""

    def __init__(self, holder: Holder, stream_requests: int) -> None:
        self._holder = holder
        self._stream_requests = stream_requests

    async def Embed(self, request: embedding_pb2.EmbedRequest, context: Context) -> bytes:
        """One vector for each input, as a serialised EmbedResponse."""
        del context
        return await self._embed(self._holder.model, request)

    async def _embed(
        self, model: Model, request: embedding_pb2.EmbedRequest, *, patient: bool = False
    ) -> bytes:
        with model.observed("embed"):
            checks.check_model(request.model, model.info)
            request_id = logs.bind_request_id(request.request_id)
            checks.check_task("embed", model.info)
            params = Params("embed", checks.dimensions(request, model.info))
            element_type = checks.element_type(request)
            pooled = await model.pool(request, params, "embed", patient=patient)
            with telemetry.stage("answer"):
                return answers.embed_response(
                    pooled.rows,
                    element_type,
                    model=request.model,
                    usage=pooled.usage,
                    request_id=request_id,
                )

    async def EmbedStream(
        self, requests: AsyncIterator[embedding_pb2.EmbedStreamRequest], context: Context
    ) -> AsyncIterator[Any]:
        """Answers in the order in which they are ready."""
        del context
        model, pending = self._holder.model, set[str]()

        async def answer(message: embedding_pb2.EmbedStreamRequest) -> Any:
            request = message.request
            request.priority = request.priority or embedding_pb2.PRIORITY_BULK
            try:
                with checks.unique_id(request.request_id, pending):
                    response = await self._embed(model, request, patient=True)
                return EmbedStreamResponse(request_id=request.request_id, response=response)
            except Exception as raised:
                error = to_status(translate(raised)).SerializeToString()
                failure = EmbedStreamResponse(request_id=request.request_id)
                failure.error.MergeFromString(error)
                return failure

        async for response in answer_each(requests, answer, self._stream_requests):
            yield response

    def service(self) -> Service:
        """The gRPC service; vectors stay bytes."""
        stream = embedding_pb2.EmbedStreamRequest.FromString
        codecs = {
            "Embed": (embedding_pb2.EmbedRequest.FromString, None),
            "EmbedStream": (stream, EmbedStreamResponse.SerializeToString),
        }
        return Service(_EMBEDDING, self, codecs=codecs, endless=frozenset({"EmbedStream"}))
