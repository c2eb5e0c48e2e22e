"""The engine's process: takes requests, feeds the engine, sends back results.

Run as ``python -m embed_worker.engine_process PARENT_PID ENGINE ADDRESS SHARING POLL [FLAGS...]``.
Everything happens in one loop on one thread: receive, feed, step, send.
"""

from __future__ import annotations

import gc
import pkgutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

import click
import msgspec
import zmq

from embed_worker.engine import (
    ENGINES,
    Cancel,
    Engine,
    Ready,
    Result,
    Rows,
    Scrape,
    Scraped,
    Step,
    ToEngine,
    Work,
)
from embed_worker.job import Frames, Job
from tensorway.flags import BadFlag
from tensorway.lifeline import die_with_parent

# An engine step makes some hundred thousand objects and few cycles; with Python's own
# threshold the collector runs dozens of times in each.
_GC_THRESHOLD = 100_000


class Loop:
    """Drives an engine: interactive requests go first, then bulk ones."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes], poll_seconds: float) -> None:
        self._engine = engine
        self._socket = socket
        self._poll_seconds = poll_seconds if engine.info.on_gpu else 0.0
        self._jobs: dict[int, Job] = {}
        self._queues: dict[bool, deque[Job]] = {False: deque(), True: deque()}
        self._running = self._bulk = self._tokens = 0
        self._stepped = self._worked = 0.0
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def run(self) -> None:
        """Run until killed; an error of the engine ends the process."""
        busy = False
        while True:
            self._receive(wait=not busy)
            results = list(self._feed())
            stepped = self._running > 0
            finished = self._step() if stepped else []
            if stepped or results:
                self._send(results, finished)
            busy = bool(self._jobs) or self._engine.tidy()

    def _step(self) -> list[tuple[str, Rows]]:
        began = time.monotonic()
        finished = self._engine.step()
        self._worked = time.monotonic()
        self._stepped += self._worked - began
        return finished

    def _receive(self, *, wait: bool) -> None:
        if wait:
            self._poll()
        while self._socket.poll(None if wait else 0):
            wait = False
            head, *frames = self._socket.recv_multipart()
            match self._decoder.decode(head):
                case Work() as work:
                    job = self._jobs[work.id] = Job(work, *frames)
                    self._queues[work.bulk].append(job)
                case Cancel(id):
                    self._drop(id)
                case Scrape():
                    self._reply(Scraped(self._engine.metrics()), [])

    def _poll(self) -> None:
        """Wait awake for a while: a core that slept starts its next step late."""
        until = self._worked + self._poll_seconds
        while time.monotonic() < until and not self._socket.poll(0):
            pass

    def _feed(self) -> Iterator[Result]:
        """Give the engine its next step's worth; yields what it refused."""
        given = 0
        for queue in (self._queues[False], self._queues[True]):
            while queue and self._has_room(queue[0], given):
                try:
                    tokens = queue[0].feed(self._engine, self._stepped)
                    given += tokens
                    self._tokens += tokens
                    self._running += 1
                    self._bulk += queue[0].work.bulk
                except ValueError as error:
                    yield Result(queue[0].work.id, error=str(error))
                    self._drop(queue[0].work.id)
                    continue
                if queue[0].fed:
                    queue.popleft()

    def _has_room(self, job: Job, given: int) -> bool:
        info = self._engine.info
        # One bulk input may go over: beside interactive ones a long one would never fit.
        bounded = given and (self._bulk or not job.work.bulk)
        if info.step_tokens and bounded and given + job.next_tokens > info.step_tokens:
            return False
        # Bulk inputs of many steps in the engine's own queue would stand before
        # interactive ones that come later.
        full = job.work.bulk and self._tokens >= info.max_num_batched_tokens
        return self._running < info.max_num_seqs and not full

    def _send(self, results: list[Result], finished: Sequence[tuple[str, Rows]]) -> None:
        frames: Frames = [b""] * (2 * len(results))
        tokens = 0
        for key, rows in finished:
            id_, _, index = key.partition("-")
            job = self._jobs[int(id_)]
            self._running -= 1
            self._bulk -= job.work.bulk
            tokens += job.tokens(int(index))
            job.finish(int(index), rows)
            if (done := job.result(self._stepped)) is not None:
                results.append(done[0])
                frames += done[1]
                del self._jobs[job.work.id]
        self._tokens -= tokens
        self._reply(Step(len(finished), tokens, results), frames)

    def _drop(self, id_: int) -> None:
        if (job := self._jobs.pop(id_, None)) is None:
            return
        running = job.running()
        self._engine.abort([f"{id_}-{index}" for index in running])
        self._running -= len(running)
        self._bulk -= len(running) * job.work.bulk
        self._tokens -= sum(map(job.tokens, running))
        if not job.fed:
            self._queues[job.work.bulk].remove(job)

    def _reply(self, message: Step | Scraped, frames: Frames) -> None:
        self._socket.send_multipart([msgspec.msgpack.encode(message), *frames], copy=False)


def main(parent: str, name: str, address: str, sharing: str, poll: str, *flags: str) -> None:
    """Load the engine, say so, and serve it."""
    die_with_parent(int(parent))
    # A terminal and a service manager signal the whole group; the front says when we end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        engine: Engine = pkgutil.resolve_name(ENGINES[name])(flags, int(sharing))
    except BadFlag as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    # What is loaded stays: the collector need not look at it after each few requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        # Nothing accepted may be dropped; what is accepted is bounded in front of us.
        socket.set_hwm(0)
        socket.connect(address)
        socket.send(msgspec.msgpack.encode(Ready(engine.info)))
        Loop(engine, socket, float(poll)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
