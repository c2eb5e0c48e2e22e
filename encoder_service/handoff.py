"""An application's own encoder, and the handoff of its results to a generator.

>>> handoff = ExternalEncoderHandoff(MyEncoder(), generator="127.0.0.1:50060")
>>> await handoff.load("my-model")
>>> prepared = await handoff.prepare_request(request, target_model="smollm2")
>>> async for response in handoff.generate(prepared): ...
>>> await handoff.shutdown()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from encoder_service.generators import Generators
from tensorway.channels import Dialer
from tensorway.encoder import VisionEncoderBackend
from tensorway.encoding.encoder import Encoder
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.errors import FailedPrecondition
from tensorway.handoff import header, stream
from tensorway.handoff.elements import converted, first_not_finite
from tensorway.handoff.features import Features
from tensorway.handoff.negotiation import Agreement, Target, agree, check_count, check_size
from tensorway.options import DialOptions
from tensorway.prompt import check_placeholders
from tensorway.v1 import generator_pb2, handoff_pb2


@dataclass(frozen=True)
class Prepared:
    """A request for a generator: nothing of the images is left but their features."""

    start: generator_pb2.GenerateStart
    features: Features | None

    def messages(self) -> Iterator[bytes]:
        """What is sent: the start, then the chunks and the end of the result."""
        yield generator_pb2.GenerateRequest(start=self.start).SerializeToString()
        if self.features is not None:
            yield from stream.cut(self.features.rows)


class ExternalEncoderHandoff:
    """Encodes the images of requests, and prepares the requests for a generator."""

    def __init__(
        self,
        backend: VisionEncoderBackend,
        generator: str | None = None,
        options: EncoderOptions | None = None,
        image_options: ImageOptions | None = None,
        dial_options: DialOptions | None = None,
    ) -> None:
        """`generator` is the address of a generator, or of a router that knows some."""
        self.encoder = Encoder(backend, options, image_options)
        self._address = generator
        self._dialer = Dialer(dial_options or DialOptions())
        self._generators: Generators | None = None
        self._stack = AsyncExitStack()

    async def load(self, model_id: str, name: str = "") -> None:
        """Build the backend, and encode one picture to prove that it works."""
        await self._stack.enter_async_context(self.encoder)
        if self._address is not None:
            channel = await self._stack.enter_async_context(self._dialer.open(self._address))
            self._generators = Generators(channel, self._dialer)
        await self.encoder.load(model_id, name)

    async def shutdown(self) -> None:
        """Close the backend and the connection; what is in flight fails."""
        await self._stack.aclose()

    async def prepare_request(
        self, request: generator_pb2.GenerateStart, *, target_model: str
    ) -> Prepared:
        """The request with its images encoded; raises before any work what cannot fit.

        Only what a generator needs is copied, so that nothing else of the source goes on.
        """
        token = self.encoder.backend.image_token_id
        check_placeholders(request.prompt_token_ids, token, len(request.images))
        start = generator_pb2.GenerateStart(
            model=target_model,
            prompt_token_ids=request.prompt_token_ids,
            return_text=request.return_text,
            request_id=request.request_id,
        )
        if request.HasField("sampling_params"):
            start.sampling_params.CopyFrom(request.sampling_params)
        if not request.images:
            return Prepared(start, None)
        if self._generators is None:
            # The application sends it by itself, to a reader that nobody asked.
            result, features = await self.encode(request.images, accepted_versions=(0,))
        else:
            result, features = await self.encode(request.images, target_model=target_model)
        start.encoder_result.CopyFrom(result)
        return Prepared(start, features)

    async def encode(
        self,
        images: Sequence[handoff_pb2.ImageInput],
        *,
        target_model: str = "",
        accepted_versions: Sequence[int] = header.VERSIONS,
    ) -> tuple[handoff_pb2.EncoderResult, Features]:
        """The features of images, and the header to send before them."""
        target = await self._known_generators().target(target_model) if target_model else None
        identity, width = self.encoder.identity, self.encoder.hidden_size
        agreement = agree(identity, width, target, accepted_versions)
        if target is not None:
            check_count(len(images), target)
        features = await self.encoder.encode(images)
        return await asyncio.to_thread(self._pack, features, agreement, target)

    async def generate(
        self, prepared: Prepared, timeout: float | None = None
    ) -> AsyncGenerator[generator_pb2.GenerateResponse, None]:
        """The generator's answer, token by token."""
        async with aclosing(self.relay(prepared, timeout)) as messages:
            async for message in messages:
                yield generator_pb2.GenerateResponse.FromString(message)

    def relay(self, prepared: Prepared, timeout: float | None) -> AsyncGenerator[bytes, None]:
        """The generator's answer as messages that are passed on unread."""
        return self._known_generators().generate(prepared.messages(), timeout)

    def _known_generators(self) -> Generators:
        if self._generators is None:
            raise FailedPrecondition("no generator is known (--generator)")
        return self._generators

    def _pack(
        self, features: Features, agreement: Agreement, target: Target | None
    ) -> tuple[handoff_pb2.EncoderResult, Features]:
        if agreement.dtype is not None:
            features = replace(features, rows=converted(features.rows, agreement.dtype))
            if (place := first_not_finite(features.rows)) is not None:
                raise FailedPrecondition(
                    f"the encoder's number at {place} does not fit {agreement.dtype.name}, in "
                    "which the generator computes"
                )
        if target is not None:
            check_size(features, target)
        return header.write(features, agreement.version, self.encoder.identity), features
