"""Threads for work that may never return: nobody has to wait for them, not even at exit.

An executor of the standard library is joined when the process ends, so that one call that
hangs, in an application's own code, would keep the process for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Threads:
    """So many daemon threads; work is done in the order in which it was asked for."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = count
        self._closed = False
        self._busy: dict[int, tuple[float, _Job]] = {}
        for number in range(count):
            thread = threading.Thread(
                target=self._work, args=(number,), name=f"{name}_{number}", daemon=True
            )
            thread.start()

    @property
    def busy(self) -> float:
        """Seconds since the oldest work that is being done was begun; 0 when there is none."""
        began = [began for began, _ in list(self._busy.values())]
        return time.monotonic() - min(began) if began else 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of the work; if nobody waits for it any more, it is not begun."""
        if self._closed:
            raise RuntimeError("the threads were ended")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, loop, answer))
        try:
            return await answer
        finally:
            # An error that comes from here would refer to itself through it.
            del answer

    def abandon(self, error: Exception) -> None:
        """Fail all work, begun or not; nobody waits for it any more."""
        jobs = [job for _, job in list(self._busy.values())]
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    jobs.append(job)
        for job in jobs:
            _tell(job.answer, False, error)

    def close(self) -> None:
        """Let each thread end after the work that it has."""
        self._closed = True
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            self._busy[number] = time.monotonic(), job
            _do(job)
            del self._busy[number], job


def _do(job: _Job) -> None:
    if not job.answer.cancelled():
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            job.loop.call_soon_threadsafe(_tell, job.answer, *_outcome(job.work))
    # An error's frames lead here: nothing may lead back to it.
    del job


def _outcome(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether the work returned, and what it returned or raised."""
    try:
        return True, work()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        # A future cannot hold the first; the others would end the process from the loop.
        return False, RuntimeError(f"{type(error).__name__}: {error}")
    except BaseException as error:
        return False, error


def _tell(answer: asyncio.Future[Any], returned: bool, outcome: Any) -> None:
    if answer.done():
        return
    answer.set_result(outcome) if returned else answer.set_exception(outcome)
