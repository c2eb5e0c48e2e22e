"""`tensorway` as a process, and a service for it that knows every vector."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq

from tensorway.errors import InvalidArgument
from tensorway.options import ListenOptions
from tensorway.serving import Server
from tests.rest_shim.fakes import FakeRouter, vector

# Texts with this in them are refused by the service.
UNWANTED = "unwanted"


@dataclass
class Result:
    """How a command ended."""

    status: int
    out: str
    err: str


async def start(*args: str | Path, **options: Any) -> asyncio.subprocess.Process:
    """A command that runs."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tensorway.cli", *map(str, args)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        **options,
    )


async def tensorway(*args: str | Path, given: bytes = b"", **env: str) -> Result:
    """A command that has ended."""
    process = await start(*args, env={**os.environ, **env})
    out, err = await asyncio.wait_for(process.communicate(given), 60)
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


@dataclass
class Picky(FakeRouter):
    """A fake router that refuses unwanted texts."""

    texts: int = 0
    """Those that were embedded."""

    async def Embed(self, request: Any, context: Any) -> Any:
        """One vector for each text, once all are fine."""
        for index, text in enumerate(request.texts.texts):
            if UNWANTED in text:
                field = f"texts.texts[{index}]"
                raise InvalidArgument(f"{field}: nobody wants it", field=field)
        answer = await super().Embed(request, context)
        self.texts += len(answer.embeddings)
        return answer


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Picky, str]]:
    """The service, and its address."""
    service = Picky(**options)
    async with Server(ListenOptions(), service.services()) as server:
        await server.set_serving()
        yield service, f"127.0.0.1:{server.port}"


def contents(path: Path) -> tuple[list[Any], np.ndarray]:
    """The ids and vectors of an output file."""
    if path.suffix == ".npy":
        ids = path.with_suffix(".ids.jsonl")
        vectors = np.load(path)
        if ids.exists():
            return [orjson.loads(line) for line in ids.read_bytes().splitlines()], vectors
        return list(range(len(vectors))), vectors
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        column = table["embedding"].combine_chunks()
        vectors = column.flatten().to_numpy().reshape(len(table), -1)
        return table["id"].to_pylist(), vectors
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    return [row["id"] for row in rows], vectors


def expected(texts: list[str], width: int = 8) -> np.ndarray:
    """The vectors of texts, as the service makes them."""
    return np.array([vector(text, width) for text in texts])
