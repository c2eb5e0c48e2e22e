"""Work for a load generator and what came of it, as one JSON line each way."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Whom to ask, and how: our contract, or OpenAI's with one of its encodings."""

    kind: Literal["grpc", "base64", "float", "engine"]
    address: str = ""
    """``host:port``; an engine that is driven in process has none."""


class Job(msgspec.Struct, frozen=True):
    """Load of one kind for some seconds."""

    target: Target
    batch: int
    """Texts in each request."""
    callers: int
    """Requests in flight (closed loop), or connections (open loop)."""
    seconds: float
    rate: float = 0.0
    """Requests a second, whatever becomes of them (open loop); 0 is a closed loop."""
    delay: float = 0.0
    """Seconds until an open loop's first request, so that generators take turns."""
    seed: int = 0
    words: int = 18
    """Words in each text."""
    look: bool = False
    """Ask just once, and give the vectors."""


class Outcome(msgspec.Struct):
    """What one generator saw."""

    latencies: list[float] = []
    """Milliseconds; in an open loop from the moment that the request was due."""
    began: float = 0.0
    """Monotonic seconds of the first request's start."""
    ended: float = 0.0
    """Monotonic seconds of the last answer."""
    late: float = 0.0
    """Most milliseconds that a request of an open loop was sent after it was due."""
    failures: int = 0
    width: int = 0
    vectors: bytes = b""
    """float32, [batch, width], when asked to look."""


class Driver(Protocol):
    """Does jobs, one at a time."""

    def give(self, job: Job) -> None:
        """Have it start."""

    def outcome(self) -> Outcome:
        """Wait for the job that was given."""


class Generator:
    """A process that does jobs; it lives as long as the pipes to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ready(self) -> bool:
        """Whether it takes jobs; not asked again once it does."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], 0)
        return bool(readable and self._line())

    def give(self, job: Job) -> None:
        """Have it start; one job at a time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def outcome(self) -> Outcome:
        """Wait for the job that was given."""
        return msgspec.json.decode(self._line(), type=Outcome)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        raise self._ended()

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"a load generator ended with status {self._process.wait()}")


def serve(load: Callable[[], Callable[[Job], Outcome]]) -> None:
    """Get ready, say so, and do jobs from standard input until it ends."""
    # Engines and their processes print; that must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    run = load()
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(run(msgspec.json.decode(line, type=Job))) + b"\n")
        answers.flush()
