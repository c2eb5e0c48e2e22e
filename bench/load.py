"""A load generator: ``python -m bench.load``, one process for a few connections."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time

from bench.clients import Client, client
from bench.gpu import make_texts
from bench.jobs import Job, Outcome, serve

# Different requests, made before the clock starts and then used in turns.
BODIES = 16


async def run(job: Job) -> Outcome:
    """Do one job."""
    async with client(job.target) as asked:
        if job.look:
            return await _look(job, asked)
        load = _Load(job, asked)
        # Connect, so that no request of the measurement has to.
        await asyncio.gather(*(asked.call(load.body()) for _ in range(job.callers)))
        gc.collect()
        gc.disable()
        try:
            await (load.opened() if job.rate else load.closed())
        finally:
            gc.enable()
        return load.outcome


class _Load:
    def __init__(self, job: Job, asked: Client) -> None:
        seeds = range(job.seed, job.seed + BODIES)
        bodies = [asked.prepare(make_texts(job.batch, job.words, seed)) for seed in seeds]
        self._job, self._client = job, asked
        self._bodies = itertools.cycle(bodies)
        self.outcome = Outcome()

    def body(self) -> bytes:
        """The next request."""
        return next(self._bodies)

    async def closed(self) -> None:
        """Every caller asks again as soon as it is answered."""
        self.outcome.began = began = time.monotonic()

        async def caller() -> None:
            while (now := time.monotonic()) < began + self._job.seconds:
                await self._ask(now)

        await asyncio.gather(*(caller() for _ in range(self._job.callers)))

    async def opened(self) -> None:
        """Requests come at a fixed rate, however slow the answers are.

        A request that could not be sent in time has waited since it was due, and that is
        counted, or else a stalled server would be asked less and look better.
        """
        self.outcome.began = began = time.monotonic()
        async with asyncio.TaskGroup() as asking:
            for number in range(round(self._job.rate * self._job.seconds)):
                due = began + self._job.delay + number / self._job.rate
                await asyncio.sleep(due - time.monotonic())
                asking.create_task(self._ask(due))
                self.outcome.late = max(self.outcome.late, (time.monotonic() - due) * 1e3)

    async def _ask(self, due: float) -> None:
        try:
            await self._client.call(self.body())
        except Exception:
            self.outcome.failures += 1
        else:
            self.outcome.ended = time.monotonic()
            self.outcome.latencies.append((self.outcome.ended - due) * 1e3)


async def _look(job: Job, asked: Client) -> Outcome:
    texts = make_texts(job.batch, job.words, job.seed)
    vectors = asked.vectors(await asked.call(asked.prepare(texts)))
    return Outcome(width=vectors.shape[1], vectors=vectors.tobytes())


if __name__ == "__main__":
    serve(lambda: lambda job: asyncio.run(run(job)))
