"""Child processes that live and end together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import groupby

from tensorway.launches import Launch
from tensorway.lifeline import die_with_parent

# Longer than the grace that services give calls in flight, so that they end by themselves.
STOP_SECONDS = 45.0
TAIL_LINES = 20
# vLLM tells every detail of its start at its default level, INFO.
DEFAULTS = {"PYTHONUNBUFFERED": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_LINE_BYTES = 64 * 1024

Show = Callable[[str, str], None]


class ProcessFailed(Exception):
    """A process ended by itself."""

    def __init__(self, process: Process, status: int) -> None:
        how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
        super().__init__(f"{process.name} {how}")
        self.process = process


class Process:
    """One child, and the end of what it printed."""

    def __init__(self, launch: Launch, child: asyncio.subprocess.Process, show: Show) -> None:
        self.name = launch.name
        self.launch = launch
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._child = child
        self._show = show
        self._ended = asyncio.create_task(self._relay())

    async def wait(self) -> int:
        """The exit status, once it ended and all it printed was shown."""
        return await asyncio.shield(self._ended)

    async def stop(self, seconds: float) -> None:
        """Ask it to end; kill it when it has not after so many seconds."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
        self.kill()
        await self.wait()

    def kill(self) -> None:
        """End it now, with what it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._child.returncode is None:
            kill = os.killpg if number == signal.SIGKILL else os.kill
            kill(self._child.pid, number)

    async def _relay(self) -> int:
        assert self._child.stdout is not None
        async for line in _lines(self._child.stdout):
            self.tail.append(line)
            self._show(self.name, line)
        return await self._child.wait()


class Processes:
    """The children; made by :func:`running`."""

    def __init__(self, show: Show, stop_seconds: float) -> None:
        self._show = show
        self._stop_seconds = stop_seconds
        self._all: list[Process] = []

    async def start(self, launch: Launch) -> Process:
        """Start one more. It dies with us even if we are killed."""
        child = await asyncio.create_subprocess_exec(
            *launch.argv,
            env={**DEFAULTS, **os.environ, **launch.env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C goes to us alone, or all would stop at once instead of in order.
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        process = Process(launch, child, self._show)
        self._all.append(process)
        return process

    async def watch(self) -> None:
        """Wait until one ends by itself; raises ProcessFailed, never returns."""
        waits = {asyncio.create_task(process.wait()): process for process in self._all}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        first = done.pop()
        raise ProcessFailed(waits[first], first.result())

    async def stop(self) -> None:
        """Stop all, stage by stage; being cancelled kills what is left."""
        try:
            for stage in _stages(self._all):
                await asyncio.gather(*(process.stop(self._stop_seconds) for process in stage))
        finally:
            for process in self._all:
                process.kill()


@asynccontextmanager
async def running(
    launches: Iterable[Launch], show: Show, stop_seconds: float = STOP_SECONDS
) -> AsyncIterator[Processes]:
    """Start processes, and stop them in order on leaving; `show` gets name and line."""
    processes = Processes(show, stop_seconds)
    try:
        for launch in launches:
            await processes.start(launch)
        yield processes
    finally:
        await processes.stop()


def _stages(processes: list[Process]) -> list[list[Process]]:
    def stage(process: Process) -> int:
        return process.launch.stage

    return [list(group) for _, group in groupby(sorted(processes, key=stage), key=stage)]


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    # Not readline(), which raises at a line longer than its buffer.
    rest = b""
    while chunk := await stream.read(_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _text(line)
        if len(rest) > _LINE_BYTES:
            yield _text(rest)
            rest = b""
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    # A progress bar overwrites itself; its last state is the line.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
