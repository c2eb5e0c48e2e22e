"""The worker's side of the engine process: start, submit, cancel, watch, stop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from embed_worker.engine import (
    Cancel,
    EngineInfo,
    FromEngine,
    Params,
    Ready,
    Result,
    Rows,
    Scrape,
    Scraped,
    Step,
    ToEngine,
    Work,
)
from embed_worker.tokenizer import Batch, Offsets
from tensorway import telemetry
from tensorway.errors import Internal, TensorwayError, Unavailable

LOG = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5
_SCRAPE_SECONDS = 2.0

OnStep = Callable[[Step, float], None]
Pooled = tuple[Result, Rows, Offsets]


class EngineDied(RuntimeError):
    """The engine's process is gone, or was killed because it hung."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the engine's process ended with status {status}")
        self.status = status


class Place(NamedTuple):
    """What an engine's process is told of the machine that it is on."""

    sharing: int
    """Processes that share its GPU."""
    poll_seconds: float
    """For so long after its last work it polls for more, if it is on a GPU."""


class EngineProcess:
    """An engine in its own process, as a context manager; leaving it ends the process.

    A process that does not finish anything for `timeout` seconds though it has work is
    killed, so that dying and hanging end the same way: what is in flight raises
    Unavailable, and :attr:`died` is set. :attr:`tokens` is its work in flight.
    """

    def __init__(
        self,
        name: str,
        flags: Sequence[str],
        place: Place,
        timeout: float,
        on_step: OnStep,
    ) -> None:
        self.tokens = 0
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._command = (sys.executable, "-m", "embed_worker.engine_process")
        self._name, self._arguments = name, (*map(str, place), *flags)
        self._timeout = timeout
        self._on_step = on_step
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Pooled]] = {}
        self._scrapes: list[asyncio.Future[bytes]] = []
        self._progress = self._finished = time.monotonic()
        self._stack = AsyncExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tensorway-")
        folder = self._stack.enter_context(self._folder)
        context = self._stack.enter_context(zmq.asyncio.Context())
        self._address = f"ipc://{Path(folder) / 'engine'}"
        self._socket = context.socket(zmq.PAIR)
        self._stack.callback(self._socket.close, linger=0)
        self._socket.set_hwm(0)
        self._socket.bind(self._address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill()
        if self._process is not None:
            await self._process.wait()
        await self._stack.aclose()

    async def start(self) -> EngineInfo:
        """Load the model; raises EngineDied when that fails."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, str(os.getpid()), self._name, self._address, *self._arguments
        )
        for task in (self._watch_death(), self._watch_progress()):
            self._stack.callback(asyncio.create_task(task).cancel)
        received = asyncio.ensure_future(self._socket.recv())
        waited: set[asyncio.Future[object]] = {received, self.died}  # type: ignore[arg-type]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self.died.done():
            received.cancel()
            await self.died
        ready = self._decoder.decode(received.result())
        assert isinstance(ready, Ready)
        self._stack.callback(asyncio.create_task(self._receive()).cancel)
        # Both ends are connected: nothing is left on disk, however this process ends.
        self._folder.cleanup()
        return ready.info

    async def run(
        self, batch: Batch, params: Params, *, bulk: bool = False
    ) -> tuple[Rows, Offsets]:
        """Pool all inputs of a request: rows [n, width] float32, and offsets [inputs + 1].

        Cancelling this stops the work in the engine.
        """
        if self.died.done():
            raise Unavailable("the engine died")
        id_ = next(self._ids)
        if not self._waiting:
            self._progress = self._finished = time.monotonic()
        done = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self.tokens += batch.tokens
        try:
            frames = [batch.ids.data, batch.offsets.data, batch.seconds.data]
            await self._send(Work(id_, params, bulk), *frames)
            result, rows, offsets = await done
        except asyncio.CancelledError:
            await self._send(Cancel(id_))
            raise
        else:
            _record(result)
            return rows, offsets
        finally:
            del self._waiting[id_]
            self.tokens -= batch.tokens

    async def scrape(self) -> bytes:
        """The engine's own metrics; empty when it does not answer in time."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._scrapes.append(answer)
        await self._send(Scrape())
        try:
            return await asyncio.wait_for(answer, _SCRAPE_SECONDS)
        except TimeoutError:
            self._scrapes.remove(answer)
            return b""

    async def _send(self, message: ToEngine, *frames: memoryview) -> None:
        await self._socket.send_multipart([msgspec.msgpack.encode(message), *frames], copy=False)

    async def _receive(self) -> None:
        while True:
            head, *frames = await self._socket.recv_multipart(copy=False)
            match self._decoder.decode(head.buffer):
                case Step() as step:
                    self._progress = time.monotonic()
                    if step.inputs:
                        self._on_step(step, self._progress - self._finished)
                        self._finished = self._progress
                    for index, result in enumerate(step.results):
                        self._finish(result, *frames[2 * index : 2 * index + 2])
                case Scraped(text):
                    while self._scrapes:
                        self._scrapes.pop().set_result(text)

    def _finish(self, result: Result, rows: zmq.Frame, splits: zmq.Frame) -> None:
        waiting = self._waiting.get(result.id)
        if waiting is None or waiting.done():
            return
        if result.error:
            LOG.error("the engine refused a request: %s", result.error)
            waiting.set_exception(Internal("the engine refused the request"))
            return
        matrix = np.frombuffer(rows.buffer, np.float32).reshape(-1, result.width)
        waiting.set_result((result, matrix, np.frombuffer(splits.buffer, np.int64)))

    async def _watch_death(self) -> None:
        assert self._process is not None
        self.died.set_exception(EngineDied(await self._process.wait()))
        # It may be that nobody waits for this one.
        self.died.exception()
        self._fail(Unavailable("the engine died"))

    async def _watch_progress(self) -> None:
        while True:
            started = time.monotonic()
            await asyncio.sleep(_WATCH_SECONDS)
            now = time.monotonic()
            # What came while this process itself was stopped is still to be read.
            self._progress += max(now - started - 2 * _WATCH_SECONDS, 0)
            silent = now - self._progress
            if self._waiting and silent > self._timeout:
                LOG.critical("the engine finished nothing for %.1f s: killing it", silent)
                self._kill()

    def _fail(self, error: TensorwayError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)


def _record(result: Result) -> None:
    taken = result.arrived + result.queued
    telemetry.past_stage("queue", result.arrived, result.queued)
    telemetry.past_stage("run", taken, result.ran, **{"tensorway.step_seconds": result.stepped})
