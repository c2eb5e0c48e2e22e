"""Encoding and generating with the client, against servers that answer by a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tensorway import errors
from tensorway.client import AsyncClient, Client
from tensorway.handlers import Service
from tensorway.handoff import header, stream
from tensorway.handoff.features import stacked
from tensorway.options import ListenOptions
from tensorway.serving import Server
from tensorway.v1 import (
    encoder_pb2,
    encoder_pb2_grpc,
    generator_pb2,
    generator_pb2_grpc,
    handoff_pb2,
)

PLACEHOLDER = 9


def features(images: int) -> Any:
    """Rows of different counts for each image, more than one chunk of each."""
    sizes = [500 + i for i in range(images)]
    return stacked([np.full((size, 700), i, "<f4") for i, size in enumerate(sizes)], PLACEHOLDER)


@dataclass
class Fake(encoder_pb2_grpc.EncoderServiceServicer, generator_pb2_grpc.GeneratorServiceServicer):
    """An encoder and a generator; ``frames`` of the encoder's answer may be spoilt."""

    requests: list[Any] = field(default_factory=list)
    spoil: Any = list
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def Encode(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        """The header, the chunks, the end."""
        self.requests.append(request)
        made = features(len(request.images))
        identity = handoff_pb2.EncoderIdentity(model="encoder", element_type="ELEMENT_TYPE_FLOAT32")
        first = handoff_pb2.EncoderResultChunk(header=header.write(made, 1, identity))
        for frame in self.spoil([first.SerializeToString(), *stream.cut(made.rows)]):
            yield bytes(frame)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The prompt again, a token at a time."""
        if isinstance(request, encoder_pb2.EncoderServiceGenerateRequest):
            start = request
        else:
            start = (await anext(aiter(request))).start
        self.requests.append(start)
        try:
            for token in start.prompt_token_ids:
                yield generator_pb2.GenerateResponse(token_ids=[token], text=f"<{token}>")
            while start.sampling_params.ignore_eos:
                await asyncio.sleep(0.01)
                yield generator_pb2.GenerateResponse(token_ids=[0])
        finally:
            self.ended.set()

    def services(self) -> tuple[Service, Service]:
        """The services, to be given to a server."""
        encoder = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
        generator = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"]
        codecs = {"Encode": (encoder_pb2.EncodeRequest.FromString, None)}
        return Service(encoder, self, codecs=codecs), Service(generator, self)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Fake, AsyncClient]]:
    """The fake, and a client of it."""
    fake = Fake()
    async with Server(ListenOptions(), fake.services()) as server:
        await server.set_serving()
        async with AsyncClient(f"127.0.0.1:{server.port}") as client:
            yield fake, client


async def test_encode_gives_each_images_rows():
    """The tensor that was sent in pieces, and whose rows are whose."""
    async with served() as (fake, client):
        result = await client.encode([b"png", "https://host/a.png"], model="e", target_model="g")
        expected = features(2)
        assert np.array_equal(result.rows, expected.rows)
        assert (result.splits, result.image_token_id) == (expected.splits, PLACEHOLDER)
        request = fake.requests[0]
        assert (request.model, request.target_model) == ("e", "g")
        assert request.images[0].data == b"png"
        assert request.images[1].url == "https://host/a.png"
        assert list(request.accepted_versions) == list(header.VERSIONS)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(lambda frames: frames[:-1], errors.Unavailable, id="no end"),
        pytest.param(lambda frames: frames[:1], errors.Unavailable, id="only a header"),
        pytest.param(lambda frames: [], errors.Unavailable, id="nothing"),
        pytest.param(
            lambda frames: [*frames[:2], frames[-1]],
            errors.InvalidArgument,
            id="a piece is missing",
        ),
        pytest.param(lambda frames: frames[1:], errors.InvalidArgument, id="no header"),
    ],
)
async def test_damaged_result_is_refused(spoil: Any, error: type[Exception]):
    """What did not come whole is never handed out."""
    async with served() as (fake, client):
        fake.spoil = spoil
        with pytest.raises(error):
            await client.encode([b"png"], model="e")


async def test_generate_streams_tokens_and_text():
    """Tokens come as they are made, with the options that were given."""
    async with served() as (fake, client):
        answer = client.generate([1, 2, 3], model="g", temperature=0.0, max_tokens=7, stop=["x"])
        parts = [part async for part in answer]
        assert [list(part.token_ids) for part in parts] == [[1], [2], [3]]
        assert "".join(part.text for part in parts) == "<1><2><3>"
        start = fake.requests[0]
        assert (start.model, start.return_text) == ("g", True)
        assert (start.sampling_params.max_tokens, list(start.sampling_params.stop)) == (7, ["x"])
        assert start.sampling_params.HasField("temperature")
        assert not start.sampling_params.HasField("top_p")


async def test_generate_with_images_goes_through_the_encoder():
    """The encoder gets the images and the name of the generator's model."""
    async with served() as (fake, client):
        prompt = [1, PLACEHOLDER]
        answer = client.generate(prompt, model="g", images=[b"png"], encoder="e")
        assert [list(part.token_ids) async for part in answer] == [[1], [PLACEHOLDER]]
        request = fake.requests[0]
        assert isinstance(request, encoder_pb2.EncoderServiceGenerateRequest)
        assert (request.model, request.target_model) == ("e", "g")
        assert request.images[0].data == b"png"


async def test_leaving_a_generation_ends_it():
    """A caller who stops reading cancels the work."""
    async with served() as (fake, client):
        answer = client.generate([1], model="g", ignore_eos=True)
        assert (await anext(answer)).text == "<1>"
        await answer.aclose()
        await asyncio.wait_for(fake.ended.wait(), 5)


async def test_generation_ends_by_its_deadline():
    """The deadline holds for the whole answer."""
    async with served() as (_, client):
        with pytest.raises(errors.DeadlineExceeded):
            async for _part in client.generate([1], model="g", ignore_eos=True, timeout=0.3):
                pass


async def test_without_asyncio():
    """The same from a plain thread."""
    fake = Fake()
    async with Server(ListenOptions(), fake.services()) as server:
        await server.set_serving()

        def use() -> None:
            with Client(f"127.0.0.1:{server.port}") as client:
                assert client.encode([b"png"], model="e").count == 1
                assert [p.text for p in client.generate([1, 2], model="g")] == ["<1>", "<2>"]

        await asyncio.to_thread(use)
