"""The engine's life: loaded beside the loop, proven, watched."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator
from typing import NoReturn

import pytest

from generator_service.engine import EngineDied, Params, Piece
from generator_service.loading import in_thread, prove, watch
from tensorway.flags import BadFlag
from tensorway.prompt import Prompt
from tensorway.serving import Stop
from tests.generator_service.fakes import EchoEngine


async def test_loading_does_not_hold_the_loop() -> None:
    """Health checks are answered while a model loads."""
    release = threading.Event()
    loading = asyncio.create_task(in_thread(lambda: release.wait(10)))
    await asyncio.sleep(0.05)
    assert not loading.done()
    release.set()
    assert await loading is True


async def test_loading_fails_as_it_fails() -> None:
    """An error is the error; vLLM's refusal of a flag is a bad flag."""

    def broken() -> NoReturn:
        raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        await in_thread(broken)
    with pytest.raises(BadFlag, match="refused its flags"):
        await in_thread(lambda: sys.exit(2))


async def test_a_load_that_nobody_waits_for_any_more_is_forgotten() -> None:
    """Being told to stop during the load ends the wait, at once."""
    release = threading.Event()
    loading = asyncio.create_task(in_thread(lambda: release.wait(10)))
    await asyncio.sleep(0.05)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    release.set()
    await asyncio.sleep(0.05)


async def test_the_proof_is_a_prompt_with_an_image() -> None:
    """Mask and rows are exercised before the first caller does."""
    engine = EchoEngine()
    await prove(engine)
    (prompt,) = engine.prompts
    assert prompt.is_token.tolist() == [True, False, False]
    assert prompt.rows[1:].all()


async def test_an_engine_that_gives_nothing_is_not_proven() -> None:
    """No token, no service."""

    class Mute(EchoEngine):
        async def generate(self, prompt: Prompt, params: Params) -> AsyncGenerator[Piece, None]:
            yield Piece([], finish_reason="stop")

    with pytest.raises(RuntimeError, match=r"expected one token .* got \[\]"):
        await prove(Mute())


async def test_a_dead_engine_stops_the_service() -> None:
    """The watch asks to stop, with the reason."""
    engine, stop = EchoEngine(), Stop()
    watching = asyncio.create_task(watch(engine, stop))
    await asyncio.sleep(0)
    assert not watching.done()
    engine.dead = True
    with pytest.raises(EngineDied, match="told to die"):
        await asyncio.wait_for(stop.wait(), 60)
    await watching
