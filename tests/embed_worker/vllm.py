"""Real vLLM engines for the tests, and plain transformers to compare them with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorway.commands import demo
from tests.embed_worker.launch import Launcher, Worker

ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
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


async def reference(*calls: tuple[Any, ...]) -> Any:
    """Results of functions of reference.py, each with a folder and arguments."""
    given = [[name, str(folder), *arguments] for name, folder, *arguments in calls]
    return json.loads(await _run("tests.embed_worker.reference", given=json.dumps(given)))


async def save_small_models(folder: Path) -> None:
    """Write the models of small_models.py."""
    await _run("tests.embed_worker.small_models", str(folder), str(minilm()))


def cosines(got: ArrayLike, expected: ArrayLike) -> NDArray[np.float64]:
    """Cosine of each pair of rows."""
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert a.shape == b.shape
    norms: NDArray[np.float64] = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / norms


async def _run(module: str, *arguments: str, given: str = "") -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **ENVIRON},
    )
    output, _ = await process.communicate(given.encode())
    assert process.returncode == 0
    return output
