"""A loaded generator: from the messages of a request to the pieces of its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from generator_service import answers, metrics, sampling
from generator_service.admission import Admission
from generator_service.engine import Engine, Params
from generator_service.incoming import Incoming, check_sources
from generator_service.options import GeneratorOptions
from tensorway import prompt, telemetry
from tensorway.encoding.encoder import Encoder
from tensorway.errors import FailedPrecondition, NotFound
from tensorway.handoff import elements, header, stream
from tensorway.handoff.features import Features
from tensorway.options import MIB
from tensorway.prompt import Prompt
from tensorway.v1 import common_pb2, generator_pb2, model_pb2

Responses = AsyncGenerator[generator_pb2.GenerateResponse, None]


class Generator:
    """One engine, the permits for work in it, and perhaps an encoder beside it."""

    def __init__(
        self,
        engine: Engine,
        options: GeneratorOptions,
        max_images: int,
        encoder: Encoder | None = None,
    ) -> None:
        self.info = engine.info
        self.name = engine.info.names[0]
        self.accepts = header.Accepts(
            max_bytes=options.max_result_mib * MIB,
            max_images=max_images,
            hidden_size=engine.info.shape.hidden_size,
            encoder=options.required_encoder(),
        )
        self._engine = engine
        self._encoder = encoder
        self._admission = Admission(options.max_requests, options.max_held_mib * MIB)

    async def generate(
        self, start: generator_pb2.GenerateStart, incoming: Incoming, request_id: str
    ) -> Responses:
        """The answer to a request, of which `incoming` holds what follows the start."""
        self.check_name(start.model)
        check_sources(start)
        params = sampling.read(start.sampling_params, start.return_text, self.info)
        async with self._features(start, incoming) as features:
            await incoming.finish()
            built = await asyncio.to_thread(
                prompt.build, start.prompt_token_ids, features, self.info.shape
            )
            async with aclosing(self._answer(built, params, request_id)) as responses:
                async for response in responses:
                    yield response

    def on_crash(self, tell: Callable[[BaseException], None]) -> None:
        """Call `tell` with the error, if the encoder beside the engine ever ends by one."""
        if self._encoder is not None:
            self._encoder.on_crash(tell)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold room for a request; ResourceExhausted when there is none."""
        with self._admission.request(), metrics.IN_FLIGHT.track_inprogress():
            yield

    def check_name(self, model: str) -> None:
        """Raise NotFound unless the model is this one."""
        if model not in self.info.names:
            raise NotFound(f"model: {model!r} is not served here; known: {self.name}")

    def load(self) -> model_pb2.WorkerLoad:
        """Work in the generator now."""
        requests = self._admission.requests
        return model_pb2.WorkerLoad(requests=requests, inputs=requests)

    def describe(self) -> generator_pb2.GeneratorServiceGetModelResponse:
        """What the generator accepts."""
        shape = self.info.shape
        return generator_pb2.GeneratorServiceGetModelResponse(
            model=self.name,
            hidden_size=shape.hidden_size,
            element_type=elements.element_type(shape.dtype),
            accepted_versions=header.VERSIONS if self.accepts.encoder is None else (1,),
            accepted_formats=[header.FORMAT],
            max_model_len=shape.max_model_len,
            vocab_size=shape.vocab_size,
            accepted_element_types=elements.ELEMENT_TYPES.values(),
            accepted_modalities=header.MODALITIES,
            max_result_bytes=self.accepts.max_bytes,
            max_images=self.accepts.max_images,
            required_encoder=self.accepts.encoder,
        )

    @asynccontextmanager
    async def _features(
        self, start: generator_pb2.GenerateStart, incoming: Incoming
    ) -> AsyncIterator[Features | None]:
        if start.HasField("encoder_result"):
            layout = header.read(start.encoder_result, self.accepts)
            ids, token = start.prompt_token_ids, layout.image_token_id
            prompt.check(ids, self.info.shape, token, layout.splits)
            with self._admission.result(layout.nbytes):
                features = await incoming.features(layout)
                await asyncio.to_thread(stream.check_digests, features, layout)
                metrics.RESULT_BYTES.labels(self.name).inc(layout.nbytes)
                metrics.IMAGES.labels(self.name, "external").inc(features.count)
                yield features
        else:
            yield await self._inline(start)

    async def _inline(self, start: generator_pb2.GenerateStart) -> Features | None:
        if self._encoder is None and start.images:
            raise FailedPrecondition(
                "images: this generator has no encoder (--backend); send an encoder result"
            )
        if self._encoder is None:
            return None
        token = self._encoder.backend.image_token_id
        prompt.check_placeholders(start.prompt_token_ids, token, len(start.images))
        if not start.images:
            return None
        metrics.IMAGES.labels(self.name, "inline").inc(len(start.images))
        return await self._encoder.encode(start.images)

    async def _answer(self, built: Prompt, params: Params, request_id: str) -> Responses:
        usage = common_pb2.Usage(prompt_tokens=len(built.token_ids))
        started = time.perf_counter()
        metrics.PROMPT_TOKENS.labels(self.name).inc(usage.prompt_tokens)
        with telemetry.model_span("text_completion", self.name) as span:
            async with aclosing(self._engine.generate(built, params)) as pieces:
                async for piece in pieces:
                    if not usage.completion_tokens:
                        elapsed = time.perf_counter() - started
                        metrics.FIRST_TOKEN.labels(self.name).observe(elapsed)
                    usage.completion_tokens += len(piece.token_ids)
                    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
                    yield answers.response(piece, request_id, usage)
            metrics.TOKENS.labels(self.name).inc(usage.completion_tokens)
            telemetry.set_usage(span, usage.prompt_tokens, usage.completion_tokens)
