"""Features and headers that several tests need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensorway.handoff import header
from tensorway.handoff.features import Features
from tensorway.v1 import handoff_pb2, tensor_pb2
from tests.handoff.services import Launcher, Service

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
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small real chat model; beside it, the one of :func:`llava`."""
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    # In a process of its own: a conversion leaves a gigabyte and many warnings behind.
    command = [sys.executable, "-m", "tests.handoff.checkpoints", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def llava(smollm2: Path) -> Path:
    """The folder of a LLaVA with random eyes and the small model's words."""
    return smollm2.parent / "llava"


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
