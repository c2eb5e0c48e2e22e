"""EncoderService: images to a streamed result, or through a generator to tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager

from encoder_service.handoff import ExternalEncoderHandoff, Prepared
from encoder_service.options import EncoderServiceOptions
from tensorway import logs, telemetry
from tensorway.deadline import deadline, seconds_left
from tensorway.errors import InvalidArgument, NotFound, ResourceExhausted, Unavailable
from tensorway.handlers import Context, Service
from tensorway.handoff import stream
from tensorway.v1 import encoder_pb2, generator_pb2, handoff_pb2, model_pb2

_RETRY_SECONDS = 1.0


class EncoderServicer:
    """EncoderService on one handoff; it has a name once the encoder is loaded."""

    def __init__(self, handoff: ExternalEncoderHandoff, options: EncoderServiceOptions) -> None:
        self.name = ""
        self._handoff = handoff
        self._options = options
        self._requests = 0

    async def Encode(
        self, request: encoder_pb2.EncodeRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """One result for all images: its header, its chunks, its end."""
        with self._admitted(request.model, request.request_id):
            async with deadline(context, self._options.request_timeout):
                if not request.images:
                    raise InvalidArgument("images: expected at least one", field="images")
                with telemetry.span("encode", {"tensorway.images": len(request.images)}):
                    result, features = await self._handoff.encode(
                        request.images,
                        target_model=request.target_model,
                        accepted_versions=request.accepted_versions or (0,),
                    )
                with self._handoff.encoder.hold(features):
                    yield handoff_pb2.EncoderResultChunk(header=result).SerializeToString()
                    for frame in stream.cut(features.rows):
                        yield frame

    async def Generate(
        self, request: encoder_pb2.EncoderServiceGenerateRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """The tokens of the generator, which gets features in the place of images."""
        with self._admitted(request.model, request.request_id) as request_id:
            async with deadline(context, self._options.request_timeout):
                prepared = await self._prepare(request, request_id)
                left = seconds_left(context, self._options.request_timeout)
                with ExitStack() as held:
                    held.enter_context(self._handoff.encoder.hold(prepared.features))
                    relayed = self._handoff.relay(prepared, left)
                    # Nothing here keeps the features, which are sent before the first token.
                    del prepared
                    async with aclosing(relayed) as messages:
                        async for message in messages:
                            held.close()
                            yield message

    def load(self) -> model_pb2.WorkerLoad:
        """Work in the service now."""
        return model_pb2.WorkerLoad(requests=self._requests, inputs=self._handoff.encoder.pending)

    def service(self) -> Service:
        """The gRPC service; what it sends are bytes already."""
        descriptor = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
        codecs = {
            "Encode": (encoder_pb2.EncodeRequest.FromString, None),
            "Generate": (encoder_pb2.EncoderServiceGenerateRequest.FromString, None),
        }
        return Service(descriptor, self, codecs=codecs)

    async def _prepare(
        self, request: encoder_pb2.EncoderServiceGenerateRequest, request_id: str
    ) -> Prepared:
        with telemetry.span("encode", {"tensorway.images": len(request.images)}):
            return await self._handoff.prepare_request(
                _source(request, request_id), target_model=request.target_model
            )

    @contextmanager
    def _admitted(self, model: str, request_id: str) -> Iterator[str]:
        """Hold room for a request of this model; gives its id."""
        if not self.name:
            raise Unavailable("the encoder is loading", reason="LOADING")
        if model != self.name:
            raise NotFound(f"model: {model!r} is not served here; known: {self.name}")
        if self._requests >= self._options.max_requests:
            raise ResourceExhausted(
                f"the encoder has {self._requests} requests (--max-requests)",
                retry_after=_RETRY_SECONDS,
            )
        self._requests += 1
        try:
            yield logs.bind_request_id(request_id)
        finally:
            self._requests -= 1


def _source(
    request: encoder_pb2.EncoderServiceGenerateRequest, request_id: str
) -> generator_pb2.GenerateStart:
    if not request.target_model:
        raise InvalidArgument("target_model: expected a name, got nothing", field="target_model")
    return generator_pb2.GenerateStart(
        prompt_token_ids=request.prompt_token_ids,
        images=request.images,
        sampling_params=request.sampling_params if request.HasField("sampling_params") else None,
        return_text=request.return_text,
        request_id=request_id,
    )
