"""Threads for work that may never return."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from tensorway.threads import Threads


async def test_work_is_done_in_order_and_its_outcome_returned() -> None:
    """Results and errors come back; what a future cannot hold comes as something else."""
    threads, done = Threads(1, "test"), []
    assert await asyncio.gather(*(threads.run(lambda n=n: done.append(n) or n) for n in range(9)))
    assert done == list(range(9))
    with pytest.raises(KeyError, match="x"):
        await threads.run(lambda: {}["x"])
    for wrong in (StopIteration, SystemExit, KeyboardInterrupt):

        def work(wrong: type[BaseException] = wrong) -> None:
            raise wrong

        with pytest.raises(RuntimeError, match=wrong.__name__):
            await threads.run(work)
    threads.close()
    with pytest.raises(RuntimeError, match="the threads were ended"):
        await threads.run(lambda: None)


async def test_what_nobody_waits_for_is_not_begun() -> None:
    """Work that was cancelled while it waited is dropped; what is abandoned fails."""
    threads, gate, done = Threads(1, "test"), threading.Event(), []
    first = asyncio.create_task(threads.run(lambda: gate.wait(60)))
    while not threads.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    second, third = (asyncio.create_task(threads.run(lambda n=n: done.append(n))) for n in (2, 3))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await asyncio.gather(first, third)
    assert done == [3]
    gate.clear()
    calls = [asyncio.create_task(threads.run(lambda: gate.wait(60))) for _ in range(3)]
    while not threads.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    threads.abandon(ValueError("left"))
    assert {str(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {
        "left"
    }
    gate.set()
    threads.close()


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """An executor of the standard library would be joined at exit, for ever."""
    program = (
        "import asyncio, threading; from tensorway.threads import Threads\n"
        "async def main():\n"
        "    work = Threads(1, 'x').run(threading.Event().wait)\n"
        "    await asyncio.wait({asyncio.ensure_future(work)}, timeout=0.1)\n"
        "asyncio.run(main())"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
