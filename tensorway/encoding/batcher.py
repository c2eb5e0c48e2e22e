"""Drives a backend: images of many requests, few calls, one thread.

A batch is whatever waits when the encoder becomes free, up to the backend's cost limit;
nobody waits for company.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from tensorway.encoder import Preprocessed, VisionEncoderBackend, to_rows
from tensorway.encoding import metrics
from tensorway.encoding.sources import bad_image
from tensorway.encoding.together import together
from tensorway.errors import Internal, InvalidArgument, Unavailable
from tensorway.handoff.elements import Rows
from tensorway.images import Image
from tensorway.threads import Threads

LOG = logging.getLogger(__name__)

Load = Callable[[], Image]
_STOPPED = "the encoder is not running"
_CALLERS_FAULT = (ValueError, TypeError)
_CLOSE_SECONDS, _WATCH_SECONDS = 5.0, 1.0


class EncoderHangs(Exception):
    """A call of the backend does not return; the process must end."""


class Job(NamedTuple):
    """An image that waits for the encoder."""

    item: object
    cost: int
    answer: asyncio.Future[Rows]


def take(waiting: deque[Job], budget: int) -> list[Job]:
    """The next batch, in order; those whose callers left are dropped."""
    batch: list[Job] = []
    while waiting and (waiting[0].answer.done() or waiting[0].cost <= budget):
        job = waiting.popleft()
        if not job.answer.done():
            batch.append(job)
            budget -= job.cost
    return batch


class Batcher:
    """Runs one backend; who fills it bounds what is in it at once."""

    def __init__(self, backend: VisionEncoderBackend, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout
        self._waiting: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._encoder = Threads(1, "encoder")
        self._preprocess = Threads(max(1, backend.preprocess_concurrency), "preprocess")

    def on_crash(self, tell: Callable[[BaseException], None]) -> None:
        """Call `tell` with the error, if the loop below ever ends by one."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                tell(error)

        if self._running is not None:
            self._running.add_done_callback(ended)

    async def load(self, model_id: str) -> None:
        """Build the backend on its thread, and start."""
        await self._encoder.run(lambda: self._backend.build(model_id))
        self._running = asyncio.create_task(self._drive())

    async def close(self) -> None:
        """Fail what is left, and close the backend on its thread if it was built."""
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait({running})
            with suppress(TimeoutError):
                # It may hang, and nobody watches any more.
                await asyncio.wait_for(self._encoder.run(self._backend.close), _CLOSE_SECONDS)
        self._preprocess.close()
        self._encoder.close()

    async def preprocess(self, loads: Sequence[tuple[int, Load]]) -> list[Preprocessed]:
        """All images of a request made ready; the first failure fails them all."""
        self._check_running()
        return await together(self._prepare(index, load) for index, load in loads)

    async def forward(self, prepared: Preprocessed) -> Rows:
        """The encoder's rows for one image."""
        self._check_running()
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
        self._waiting.append(Job(prepared.item, prepared.cost, answer))
        self._wake.set()
        try:
            return await answer
        finally:
            # An error that comes from here would refer to itself through it.
            del answer

    def _check_running(self) -> None:
        if self._running is None or self._running.done():
            raise Unavailable(_STOPPED)

    async def _prepare(self, index: int, load: Load) -> Preprocessed:
        try:
            prepared = await self._preprocess.run(lambda: self._prepared(load))
        except _CALLERS_FAULT as error:
            raise bad_image(index, error) from None
        except Unavailable:
            raise
        except Exception as error:
            LOG.exception("preprocess failed")
            raise Internal("the encoder's preprocessing failed") from error
        if not 1 <= prepared.cost <= self._backend.max_batch_cost:
            expected = f"expected a cost of 1 to {self._backend.max_batch_cost}"
            raise bad_image(index, f"{expected}, got {prepared.cost}")
        return prepared

    def _prepared(self, load: Load) -> Preprocessed:
        image = load()
        if self._backend.preprocess_concurrency == 0:
            return Preprocessed(image)
        return self._backend.preprocess(image)

    async def _drive(self) -> None:
        try:
            await together([self._run(), self._watch()])
        finally:
            self._preprocess.abandon(Unavailable(_STOPPED))

    async def _watch(self) -> None:
        while True:
            if self._encoder.busy > self._timeout:
                raise EncoderHangs(f"forward_batch takes longer than {self._timeout:g} s")
            if self._preprocess.busy > self._timeout:
                raise EncoderHangs(f"preprocess takes longer than {self._timeout:g} s")
            await asyncio.sleep(min(_WATCH_SECONDS, self._timeout / 2))

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                # Not by name: an idle encoder would keep the pictures of its last batch.
                await self._answer(take(self._waiting, self._backend.max_batch_cost))
                if not self._waiting:
                    self._wake.clear()
        finally:
            _fail(self._waiting, Unavailable(_STOPPED))

    async def _answer(self, batch: list[Job]) -> None:
        if not batch:
            return
        metrics.BATCH.observe(len(batch))
        try:
            results = await self._encoder.run(lambda: self._forward(batch))
        except _CALLERS_FAULT as error:
            await self._isolate(batch, error)
        except asyncio.CancelledError:
            _fail(batch, Unavailable(_STOPPED))
            raise
        except Exception:
            LOG.exception("the encoder failed on %d images", len(batch))
            _fail(batch, Internal("the encoder failed"))
        else:
            for job, rows in zip(batch, results, strict=True):
                if not job.answer.done():
                    job.answer.set_result(rows)

    async def _isolate(self, batch: list[Job], error: Exception) -> None:
        """One item is wrong: run each alone, so that it fails nobody else."""
        if len(batch) == 1:
            _fail(batch, InvalidArgument(str(error), field="images"))
            return
        for job in batch:
            await self._answer([job])

    def _forward(self, batch: list[Job]) -> list[Rows]:
        artifacts = self._backend.forward_batch([job.item for job in batch])
        if len(artifacts) != len(batch):
            raise RuntimeError(f"expected {len(batch)} artifacts, got {len(artifacts)}")
        return [to_rows(artifact) for artifact in artifacts]


def _fail(jobs: Iterable[Job], error: Exception) -> None:
    for job in jobs:
        if not job.answer.done():
            job.answer.set_exception(error)
