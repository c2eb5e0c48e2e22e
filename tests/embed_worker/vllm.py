"""Real vLLM engines for the tests, and plain transformers to compare them with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorway.commands import demo
from tests.embed_worker.launch import Launcher, Worker

ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
_ANSWER_BYTES = 1 << 26
FLAGS = ("--runner", "pooling", "--enforce-eager", "--dtype", "float32")


def minilm() -> Path:
    """Folder of a real sentence model, of 384 dimensions."""
    (workers,) = demo.minilm(0, 0).workers
    return Path(workers.model)


async def start(launcher: Launcher, folder: Path, *flags: str) -> Worker:
    """A worker with a model on vLLM, once it is ready."""
    names = ("--served-model-name", "small", "alias")
    worker = await launcher.start(
        str(folder), *FLAGS, *names, *flags, engine="vllm", ready=False, environ=ENVIRON
    )
    worker.model = "small"
    await worker.ready(240)
    return worker


class Reference:
    """Plain transformers, loaded once: ``await reference("pooled", folder, ids, "mean")``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, name: str, *arguments: Any) -> Any:
        """What a function of reference.py returns for arguments that JSON has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, *arguments], default=str).encode() + b"\n")
        answer = await self._process.stdout.readline()
        assert answer, f"{name} failed, see above"
        return json.loads(answer)


@asynccontextmanager
async def referring() -> AsyncIterator[Reference]:
    """The process of :class:`Reference`, which starts while others do."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.embed_worker.reference"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **ENVIRON},
        limit=_ANSWER_BYTES,
    )
    try:
        yield Reference(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def cosines(got: ArrayLike, expected: ArrayLike) -> NDArray[np.float64]:
    """Cosine of each pair of rows."""
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert a.shape == b.shape
    norms: NDArray[np.float64] = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / norms
