"""GeneratorService, and ModelService for the one model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from generator_service.incoming import Incoming
from generator_service.model import Generator
from generator_service.options import GeneratorOptions
from tensorway import logs
from tensorway.deadline import deadline
from tensorway.errors import TensorwayError, Unavailable
from tensorway.handlers import Context, Service
from tensorway.v1 import generator_pb2


class Holder:
    """The generator, once it is loaded and proven."""

    def __init__(self) -> None:
        self.loaded: Generator | None = None

    @property
    def generator(self) -> Generator:
        """The generator; raises Unavailable while there is none."""
        if self.loaded is None:
            raise Unavailable("the model is loading", reason="LOADING")
        return self.loaded


class GeneratorServicer:
    """GeneratorService."""

    def __init__(self, holder: Holder, options: GeneratorOptions) -> None:
        self._holder = holder
        self._options = options

    async def Generate(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[generator_pb2.GenerateResponse]:
        """The answer, token by token; requests stay bytes, since chunks are large."""
        generator = self._holder.generator
        incoming = Incoming(requests, self._options.receive_timeout)
        try:
            with generator.admitted():
                async with deadline(context, self._options.generate_timeout):
                    start = await incoming.start()
                    answer = generator.generate(
                        start, incoming, logs.bind_request_id(start.request_id)
                    )
                    async with aclosing(answer) as responses:
                        async for response in responses:
                            yield response
        except TensorwayError:
            await incoming.drain()
            raise

    async def GetModel(
        self, request: generator_pb2.GeneratorServiceGetModelRequest, context: Context
    ) -> generator_pb2.GeneratorServiceGetModelResponse:
        """What the generator accepts."""
        del context
        generator = self._holder.generator
        generator.check_name(request.model)
        return generator.describe()

    def service(self) -> Service:
        """The gRPC service."""
        descriptor = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
        serialize = generator_pb2.GenerateResponse.SerializeToString
        return Service(descriptor, self, codecs={"Generate": (None, serialize)})
