"""Workers for the tests of this folder: one shared, and others on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.embed_worker import vllm
from tests.embed_worker.launch import Launcher, Worker


@pytest.fixture(scope="session")
async def launcher(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launcher]:
    """Starts workers that live as long as the session."""
    launcher = Launcher(tmp_path_factory.mktemp("workers"))
    try:
        yield launcher
    finally:
        await launcher.close()


@pytest.fixture(scope="session")
async def worker(launcher: Launcher) -> Worker:
    """A worker with the fake engine, for tests that leave it as it is."""
    names = ("--served-model-name", "fake", "alias")
    worker = await launcher.start("model", *names, "--matryoshka", "--nan-id", "1000")
    # From here on its counters exist.
    await worker.embed("first")
    return worker


@pytest.fixture
async def start(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launcher]:
    """Starts workers that end with the test."""
    launcher = Launcher(tmp_path_factory.mktemp("workers"))
    try:
        yield launcher
    finally:
        await launcher.close()


@pytest.fixture(scope="session")
async def reference() -> AsyncIterator[vllm.Reference]:
    """What plain transformers makes of a model."""
    async with vllm.referring() as reference:
        yield reference


@pytest.fixture(scope="session")
async def small_models(tmp_path_factory: pytest.TempPathFactory, reference: vllm.Reference) -> Path:
    """A folder of small models; see small_models.py."""
    folder = tmp_path_factory.mktemp("models")
    await reference("small_models", folder, vllm.minilm())
    return folder
