"""The Python client against a real server: arrays, splitting, retries, deadlines, streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorway import errors
from tensorway.client import AsyncClient, BatchResult, Client
from tensorway.options import MIB, DialOptions, ListenOptions
from tensorway.serving import Server
from tensorway.v1 import embedding_pb2, tensor_pb2
from tests.rest_shim.fakes import ALIAS, MODEL, FakeRouter, vector


@asynccontextmanager
async def served(
    options: ListenOptions | None = None, **client: Any
) -> AsyncIterator[tuple[FakeRouter, AsyncClient]]:
    """A fake router, and a client of it."""
    fake = FakeRouter()
    async with Server(options or ListenOptions(), fake.services()) as server:
        await server.set_serving()
        async with AsyncClient(f"127.0.0.1:{server.port}", **client) as connected:
            yield fake, connected


async def test_texts_become_one_float32_array():
    """One row for each text, in order, writable like any array."""
    async with served() as (_, client):
        vectors = await client.embed(["a", "b"], model=MODEL)
        assert (vectors.shape, vectors.dtype) == ((2, 8), np.dtype("float32"))
        assert np.array_equal(vectors, [vector("a"), vector("b")])
        assert vectors.flags.writeable


async def test_other_forms_of_input():
    """A string alone is one text; lists of ids, also as arrays, are inputs."""
    async with served() as (_, client):
        assert np.array_equal(await client.embed("a", model=ALIAS), [vector("a")])
        for ids in ([[7, 8], [9]], [np.array([7, 8]), np.array([9])]):
            vectors = await client.embed(ids, model=MODEL)
            assert np.array_equal(vectors, [vector([7, 8]), vector([9])])


async def test_options_are_sent_as_given():
    """What is left out stays absent."""
    async with served() as (fake, client):
        await client.embed("a", model=MODEL)
        await client.embed("a", model=MODEL, dimensions=4, add_special_tokens=False)
        absent, given = fake.requests
        assert not absent.HasField("dimensions")
        assert not absent.HasField("add_special_tokens")
        assert (given.dimensions, given.add_special_tokens) == (4, False)


@pytest.mark.parametrize(
    ("dtype", "element_type", "expected"),
    [
        ("float16", tensor_pb2.ELEMENT_TYPE_FLOAT16, np.dtype("<f2")),
        ("int8", tensor_pb2.ELEMENT_TYPE_INT8, np.dtype("i1")),
        ("binary", tensor_pb2.ELEMENT_TYPE_BINARY, np.dtype("u1")),
    ],
)
async def test_other_types_of_numbers(dtype: Any, element_type: int, expected: np.dtype[Any]):
    """Other element types are read from the packed bytes."""
    async with served() as (fake, client):
        fake.packed = b"\x01\x02\x03\x04"
        vectors = await client.embed(["a", "b"], model=MODEL, dtype=dtype)
        assert fake.requests[0].element_type == element_type
        assert vectors.dtype == expected
        assert vectors.tobytes() == fake.packed * 2


async def test_more_inputs_than_one_request_takes():
    """5000 texts go as requests of at most 2048, and come back in order."""
    async with served() as (fake, client):
        texts = [str(i) for i in range(5000)]
        vectors = await client.embed(texts, model=MODEL)
        assert sorted(len(r.texts.texts) for r in fake.requests) == [904, 2048, 2048]
        assert np.array_equal(vectors, [vector(text) for text in texts])


async def test_more_bytes_than_one_message_takes():
    """Requests stay under the message limit, and so do ids."""
    async with served(dial=DialOptions(dial_max_message_mib=1)) as (fake, client):
        texts = [f"{i}" + "é" * 60_000 for i in range(10)]
        await client.embed(texts, model=MODEL)
        assert len(fake.requests) > 1
        assert all(request.ByteSize() < MIB for request in fake.requests)
        sent = sorted(len(r.texts.texts) for r in fake.requests)
        assert sum(sent) == 10


async def test_answer_too_large_is_asked_for_in_halves():
    """The width of vectors is not known before: a refused answer is asked for in parts."""
    async with served(dial=DialOptions(dial_max_message_mib=1)) as (fake, client):
        fake.width = 4096
        texts = [str(i) for i in range(100)]
        vectors = await client.embed(texts, model=MODEL)
        assert np.array_equal(vectors, [vector(text, 4096) for text in texts])


async def test_one_input_too_large_is_an_error():
    """What cannot be cut any more is refused, with its place."""
    async with served(ListenOptions(max_message_mib=1)) as (_, client):
        with pytest.raises(errors.TooLarge):
            await client.embed(["a", "b" * 2 * MIB], model=MODEL)


async def test_error_names_the_place_among_all_inputs():
    """The index in an error is the caller's, not that of the part that was sent."""
    async with served() as (_, client):
        with pytest.raises(errors.InvalidArgument) as raised:
            await client.embed([*map(str, range(3000)), ""], model=MODEL)
        assert raised.value.field == "texts.texts[3000]"
        assert "[3000]" in raised.value.message


@pytest.mark.parametrize("inputs", [["a", 1], [[1], "a"], [[-1]], [[2**32]], ["\ud800"]])
async def test_input_that_cannot_be_sent_is_refused_here(inputs: Any):
    """Mixed forms, bad ids and broken text never leave the client."""
    async with served() as (fake, client):
        with pytest.raises(errors.InvalidArgument, match=r"inputs\[\d\]"):
            await client.embed(inputs, model=MODEL)
        assert fake.requests == []


async def test_only_unavailable_is_tried_again():
    """A lost server is tried again, every other error is told at once."""
    async with served() as (fake, client):
        fake.error, fake.errors_left = errors.Unavailable("restarting"), 2
        assert np.array_equal(await client.embed("a", model=MODEL), [vector("a")])
        assert len(fake.requests) == 3
        for error in (
            errors.InvalidArgument("x"),
            errors.NotFound("x"),
            errors.ResourceExhausted("x", retry_after=1.5),
            errors.DeadlineExceeded("x"),
            errors.Internal("x"),
        ):
            fake.requests.clear()
            fake.error, fake.errors_left = error, 1
            with pytest.raises(type(error)) as raised:
                await client.embed("a", model=MODEL)
            assert len(fake.requests) == 1
            assert raised.value.retry_after == error.retry_after


async def test_large_requests_are_tried_again_too():
    """GRPC keeps only small requests for another try unless told otherwise."""
    async with served() as (fake, client):
        fake.error, fake.errors_left = errors.Unavailable("restarting"), 1
        await client.embed(["x" * 4 * MIB], model=MODEL)
        assert len(fake.requests) == 2


async def test_deadline_holds_for_all_parts_together():
    """A call ends by its deadline, and so does what it sent."""
    async with served() as (fake, client):
        fake.seconds = 30
        with pytest.raises(errors.DeadlineExceeded):
            await client.embed([*map(str, range(5000))], model=MODEL, timeout=0.3)
        await asyncio.wait_for(fake.cancelled.wait(), 5)


async def test_cancelling_cancels_what_was_sent():
    """Leaving a call ends it on the server."""
    async with served() as (fake, client):
        fake.seconds = 30
        task = asyncio.create_task(client.embed("a", model=MODEL))
        await fake.started.wait()
        task.cancel()
        await asyncio.wait_for(fake.cancelled.wait(), 5)


async def test_token(tmp_path: Path):
    """The token is sent with every call; without it the server refuses."""
    path = tmp_path / "tokens"
    path.write_text("sk-one\n")
    guarded = ListenOptions(token_file=path)
    async with served(guarded, token="sk-one") as (_, client):
        await client.embed("a", model=MODEL)
        assert [model.name for model in await client.models()] == [MODEL]
    async with served(guarded) as (_, client):
        with pytest.raises(errors.Unauthenticated):
            await client.models()


async def collect(client: AsyncClient, batches: Any) -> dict[int, BatchResult]:
    """All results of a stream by their index."""
    stream = client.embed_stream(batches, model=MODEL)
    results = [result async for result in stream]
    assert len(results) == len({result.index for result in results})
    return {result.index: result for result in results}


async def test_stream_answers_every_batch():
    """Every batch has one result; a bad batch has an error and ends nothing."""
    async with served() as (_, client):
        batches = [[f"{i}", f"{i}x"] for i in range(20)]
        batches[7] = [""]
        results = await collect(client, batches)
        assert sorted(results) == list(range(20))
        assert isinstance(results[7].error, errors.InvalidArgument)
        for index in set(range(20)) - {7}:
            expected = [vector(text) for text in batches[index]]
            assert np.array_equal(results[index].vectors, expected)


async def test_stream_of_async_batches():
    """Batches may come from an asynchronous source."""

    async def batches() -> AsyncIterator[list[str]]:
        for text in "abc":
            await asyncio.sleep(0)
            yield [text]

    async with served() as (_, client):
        assert sorted(await collect(client, batches())) == [0, 1, 2]


async def test_stream_goes_on_after_a_lost_connection():
    """Batches without an answer are sent again over a new call; none is lost or doubled."""
    async with served() as (fake, client):
        fake.break_stream_after = 3
        results = await collect(client, [[str(i)] for i in range(10)])
        assert sorted(results) == list(range(10))
        assert all(result.error is None for result in results.values())


async def test_stream_gives_up_on_a_server_that_stays_away(monkeypatch: pytest.MonkeyPatch):
    """After several broken calls without an answer the error is raised."""
    monkeypatch.setattr("tensorway._client_bulk._PAUSE_SECONDS", 0.01)
    async with served() as (fake, client):
        fake.break_stream_after = 0
        fake.breaks_left = 100
        with pytest.raises(errors.Unavailable):
            await collect(client, [["a"]])


async def test_failing_source_ends_the_stream_with_its_error():
    """An error of the caller's own generator reaches the caller."""

    def batches() -> Any:
        yield ["a"]
        raise KeyError("source")

    async with served() as (_, client):
        with pytest.raises(KeyError, match="source"):
            await collect(client, batches())


async def test_client_without_asyncio():
    """The same calls from a plain thread, and from several at once."""
    fake = FakeRouter()
    async with Server(ListenOptions(), fake.services()) as server:
        await server.set_serving()

        def use() -> None:
            with Client(f"127.0.0.1:{server.port}") as client:
                assert np.array_equal(client.embed("a", model=MODEL), [vector("a")])
                results = list(client.embed_stream([["a"], ["b"]], model=MODEL))
                assert sorted(result.index for result in results) == [0, 1]
                assert next(client.embed_stream([["a"], ["b"]], model=MODEL)).index == 0
                assert [model.name for model in client.models()] == [MODEL]
                with pytest.raises(errors.NotFound):
                    client.embed("a", model="other")
                threads = [
                    threading.Thread(target=client.embed, args=("a",), kwargs={"model": MODEL})
                    for _ in range(8)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

        await asyncio.to_thread(use)
        assert len(fake.requests) >= 13


def test_array_is_made_without_reading_numbers():
    """Numbers go from the message to the array as bytes, also those that are no number."""
    odd = np.array([np.nan, np.inf, -0.0, 1e-45], "<f4")
    message = embedding_pb2.EmbedResponse()
    message.embeddings.add(values=odd)
    from tensorway import wire
    from tensorway._client_requests import to_array

    answer = wire.EmbedResponse.FromString(message.SerializeToString())
    assert to_array([answer], "float32").tobytes() == odd.tobytes()
