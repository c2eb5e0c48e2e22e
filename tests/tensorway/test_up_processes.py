"""Children that live and end together, with real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tensorway.launches import Launch
from tensorway.processes import ProcessFailed, running

# Says what it does to a file; ends on SIGTERM.
POLITE = """
import pathlib, signal, sys
def end(*_):
    with open(sys.argv[1], "a") as log:
        print(sys.argv[2], file=log)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
signal.pause()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


class Lines:
    """What the children printed, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def __call__(self, name: str, line: str) -> None:
        """Note a line."""
        self.seen.append((name, line))
        self._more.set()

    async def wait(self, *expected: tuple[str, str]) -> None:
        """Wait until all these lines were seen."""
        async with asyncio.timeout(20):
            while not set(expected) <= set(self.seen):
                self._more.clear()
                await self._more.wait()


def python(name: str, code: str, *args: object, stage: int = 0) -> Launch:
    """A child that runs Python code."""
    return Launch(name, (sys.executable, "-c", code, *map(str, args)), stage)


async def test_children_stop_in_stages(tmp_path: Path) -> None:
    """Leaving stops stage by stage, whatever the order of starting."""
    log, lines = tmp_path / "log", Lines()
    launches = [python(f"p{stage}", POLITE, log, stage, stage=stage) for stage in (2, 0, 1)]
    async with running(launches, lines):
        await lines.wait(*((launch.name, "up") for launch in launches))
    assert log.read_text().split() == ["0", "1", "2"]


async def test_first_to_fail_is_named() -> None:
    """The first child to end is named with its status and the end of its output (E10)."""
    lines = Lines()
    launches = [
        python("good", POLITE, os.devnull, ""),
        python("bad", "print('out of luck'); raise SystemExit(3)"),
    ]
    async with running(launches, lines) as children:
        with pytest.raises(ProcessFailed, match="bad ended with status 3") as raised:
            await asyncio.wait_for(children.watch(), 20)
    assert list(raised.value.process.tail) == ["out of luck"]


async def test_ending_without_error_is_a_failure_too() -> None:
    """A service that leaves by itself leaves the fleet broken."""
    async with running([python("gone", "")], Lines()) as children:
        with pytest.raises(ProcessFailed, match="gone ended with status 0"):
            await asyncio.wait_for(children.watch(), 20)


async def test_signal_is_named() -> None:
    """A child that was killed is said to have been."""
    code = "import os; os.kill(os.getpid(), 9)"
    async with running([python("victim", code)], Lines()) as children:
        with pytest.raises(ProcessFailed, match="victim was killed by SIGKILL"):
            await asyncio.wait_for(children.watch(), 20)


async def test_stubborn_child_is_killed() -> None:
    """A child that ignores SIGTERM is killed when its time is over."""
    lines = Lines()
    async with running([python("stubborn", STUBBORN)], lines, stop_seconds=0.2) as children:
        await lines.wait(("stubborn", "up"))
    with pytest.raises(ProcessFailed, match="SIGKILL"):
        await children.watch()


async def test_second_wish_to_stop_kills() -> None:
    """Being cancelled while stopping kills what is left at once."""
    lines, started = Lines(), asyncio.Event()

    async def stay() -> None:
        async with running([python("stubborn", STUBBORN)], lines):
            await lines.wait(("stubborn", "up"))
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stay())
    await started.wait()
    task.cancel()
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)


async def test_children_die_with_a_killed_parent() -> None:
    """Not even SIGKILL to the parent leaves a child behind."""
    parent = """
import asyncio, sys
from tensorway.launches import Launch
from tensorway.processes import running
child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
async def main():
    launch = Launch("c", (sys.executable, "-c", child), 0)
    async with running([launch], lambda _, line: print(line, flush=True)):
        await asyncio.Event().wait()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    async with asyncio.timeout(20):
        while is_alive(child):  # noqa: ASYNC110, it is no child of ours
            await asyncio.sleep(0.01)


async def test_long_lines_and_progress_bars() -> None:
    """A line over the buffer's size arrives in pieces; of a progress bar, its last state."""
    lines = Lines()
    code = "print('x' * 200_000); print('10%\\r20%\\r100%'); print('no newline', end='')"
    async with running([python("c", code)], lines) as children:
        with suppress(ProcessFailed):
            await asyncio.wait_for(children.watch(), 20)
    texts = [line for _, line in lines.seen]
    assert texts[-2:] == ["100%", "no newline"]
    assert "".join(texts[:-2]) == "x" * 200_000


def is_alive(pid: int) -> bool:
    """Whether the process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that init has not yet collected is dead.
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()
