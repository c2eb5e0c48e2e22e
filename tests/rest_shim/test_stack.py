"""Shim, router and worker together: every way to ask gives the same numbers."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest

from tensorway import errors
from tensorway.client import AsyncClient
from tests.rest_shim.conftest import Stack

TEXTS = [f"text number {i}" for i in range(200)]


async def ask(stack: Stack, **body: Any) -> httpx.Response:
    """POST /v1/embeddings."""
    async with httpx.AsyncClient(base_url=stack.url) as http:
        return await http.post("/v1/embeddings", json={"model": "minilm", **body})


async def test_all_ways_give_the_same_numbers(stack: Stack):
    """Floats, base64, the client through the router, in direct mode and at the worker."""
    floats = (await ask(stack, input=TEXTS)).json()["data"]
    expected = np.array([item["embedding"] for item in floats], "<f4")
    packed = (await ask(stack, input=TEXTS, encoding_format="base64")).json()["data"]
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed]
    assert np.array_equal(decoded, expected)
    for target, direct in ((stack.router, False), (stack.router, True), (stack.worker, False)):
        async with AsyncClient(target, direct=direct) as client:
            assert np.array_equal(await client.embed(TEXTS, model="minilm"), expected)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)


async def test_other_types_of_numbers(stack: Stack):
    """Narrow types are the float32 numbers, rounded."""
    async with AsyncClient(stack.router) as client:
        exact = await client.embed(TEXTS, model="minilm")
        halves = await client.embed(TEXTS, model="minilm", dtype="float16")
        assert np.array_equal(halves, exact.astype("f2"))
        bits = await client.embed(TEXTS, model="minilm", dtype="binary")
        assert np.array_equal(bits, np.packbits(exact > 0, axis=1))


async def test_bulk_equals_single_requests(stack: Stack):
    """A stream's batches have the numbers of the same texts asked for at once."""
    batches = [TEXTS[start : start + 16] for start in range(0, 200, 16)]
    async with AsyncClient(stack.router) as client:
        expected = await client.embed(TEXTS, model="minilm")
        results = [r async for r in client.embed_stream(batches, model="minilm")]
    ordered = [result.vectors for result in sorted(results, key=lambda r: r.index)]
    assert np.array_equal(np.concatenate(ordered), expected)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": [[1], []]}, 400, "input[1]"),
        ({"input": [[1], [5, 2000]]}, 400, "input[1][1]"),
        ({"input": [2**31 - 1]}, 400, "input[0][0]"),
        ({"input": "word " * 500}, 400, "input[0]"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": 33}, 400, "dimensions"),
        ({"input": "a", "dimensions": 16}, 400, "dimensions"),
        ({"input": "a", "prompt_name": "none"}, 400, "prompt_name"),
        ({"input": "a", "model": "none"}, 404, "model"),
        ({"input": ["a"] * 2049}, 413, "input"),
    ],
)
async def test_bad_input_through_everything(
    stack: Stack, body: dict[str, Any], status: int, param: str
):
    """The worker's refusal arrives with the field as the caller wrote it; it goes on."""
    answer = await ask(stack, **body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert (await ask(stack, input="a", dimensions=32)).status_code == 200


async def test_client_splits_what_a_worker_refuses(stack: Stack):
    """More inputs than a worker takes are several requests."""
    async with AsyncClient(stack.router) as client:
        vectors = await client.embed([str(i) for i in range(3000)], model="minilm")
        assert vectors.shape == (3000, 32)
        with pytest.raises(errors.InvalidArgument) as raised:
            await client.embed([*map(str, range(2100)), ""], model="minilm")
        assert raised.value.field == "texts.texts[2100]"


async def test_many_clients_at_once(stack: Stack):
    """Sixteen clients in both encodings, each with its own right answers."""
    async with httpx.AsyncClient(base_url=stack.url) as http:

        async def work(client: int) -> None:
            for turn in range(10):
                texts = [f"{client} {turn} {i}" for i in range(5)]
                body = {"model": "minilm", "input": texts}
                first, second = await asyncio.gather(
                    http.post("/v1/embeddings", json=body),
                    http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}),
                )
                for one, other in zip(first.json()["data"], second.json()["data"], strict=True):
                    decoded = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
                    assert np.array_equal(np.array(one["embedding"], "<f4"), decoded)

        await asyncio.gather(*(work(client) for client in range(16)))
