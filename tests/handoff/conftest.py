"""Features and headers that several tests need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tensorway.handoff import header
from tensorway.handoff.features import Features
from tensorway.v1 import handoff_pb2, tensor_pb2
from tests.handoff.services import Launcher, Service


class Checkpoints(NamedTuple):
    """Generated models, and who generates answers of them."""

    folder: Path
    process: subprocess.Popen[bytes]


Make = Callable[..., Features]

IDENTITY = handoff_pb2.EncoderIdentity(
    model="eye", revision="r1", element_type=tensor_pb2.ELEMENT_TYPE_FLOAT32
)


@pytest.fixture
def make() -> Make:
    """Random features with so many rows for each image."""

    def features(
        *lengths: int, width: int = 8, dtype: str = "bfloat16", token: int = 7, seed: int = 0
    ) -> Features:
        rows = np.random.default_rng(seed).standard_normal((sum(lengths), width), np.float32)
        splits = (0, *(int(end) for end in np.cumsum(lengths)))
        return Features(rows.astype(getattr(ml_dtypes, dtype, dtype)), splits, token)

    return features


@pytest.fixture
def accepts() -> header.Accepts:
    """A reader of rows of 8 numbers."""
    return header.Accepts(max_bytes=1 << 20, max_images=4, hidden_size=8)


@pytest.fixture
def identity() -> handoff_pb2.EncoderIdentity:
    """Who made a result."""
    return IDENTITY


@pytest.fixture(scope="session")
async def launcher(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launcher]:
    """Starts services that live as long as the session."""
    launcher = Launcher(tmp_path_factory.mktemp("services"))
    try:
        yield launcher
    finally:
        await launcher.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    """The models, in a folder, and a process that goes on to ask transformers."""
    folder = tmp_path_factory.mktemp("models")
    # In a process of its own: it leaves a gigabyte and many warnings behind.
    command = [sys.executable, "-m", "tests.handoff.checkpoints", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"saved\n", (folder / "log").read_text()[-2000:]
        yield Checkpoints(folder, process)
        process.kill()


@pytest.fixture(scope="session")
def smollm2(checkpoints: Checkpoints) -> Path:
    """The folder of a small real chat model."""
    return checkpoints.folder / "smollm2"


@pytest.fixture(scope="session")
def llava(checkpoints: Checkpoints) -> Path:
    """The folder of a LLaVA with random eyes and the small model's words."""
    return checkpoints.folder / "llava"


@pytest.fixture(scope="session")
def expected(checkpoints: Checkpoints) -> dict[str, np.ndarray]:
    """What transformers generates by itself for prompts with 0, 1 and several images."""
    assert checkpoints.process.wait(120) == 0, (checkpoints.folder / "log").read_text()[-2000:]
    return dict(np.load(checkpoints.folder / "answers.npz"))


@pytest.fixture(scope="session")
async def router(launcher: Launcher) -> Service:
    """A router that the generator registers with."""
    return await launcher.start("router", wait=False)


@pytest.fixture(scope="session")
async def generator(launcher: Launcher, router: Service, smollm2: Path, llava: Path) -> Service:
    """The one real engine, with an encoder beside it for the inline path."""
    return await launcher.start(
        "generator_service",
        str(smollm2),
        *("--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "2048"),
        *("--enforce-eager", "--gpu-memory-utilization", "0.3", "--receive-timeout", "5"),
        *("--backend", "encoder_service.huggingface:HuggingFaceEncoder"),
        *("--backend-model", str(llava), "--encoder-cache-mib", "0"),
        *("--router", router.address),
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
