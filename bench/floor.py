"""vLLM's engines without any server: ``python -m bench.floor llm|async MODEL [FLAGS]``.

``llm`` is the synchronous engine, driven as the embed worker drives it: all inputs of a
request are added together, and one loop makes steps. ``async`` is what `vllm serve` uses,
asked as `vllm serve` asks it, with one coroutine for each input. Both are given token ids.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.clients import Vectors
from bench.gpu import make_texts
from bench.jobs import Job, Outcome, serve

Ids = list[list[int]]
Run = Callable[[Job], Outcome]
_BODIES = 16


def main(engine: str, *flags: str) -> None:
    """Load the engine and do jobs."""
    load = {"llm": synchronous, "async": asynchronous}[engine]
    serve(lambda: load(flags))


class _Clock:
    """The job's time, and what was seen in it."""

    def __init__(self, job: Job) -> None:
        self._ends = 0.0 if job.look else time.monotonic() + job.seconds
        self.outcome = Outcome(began=time.monotonic())

    @property
    def over(self) -> bool:
        """Whether no new request may start."""
        return time.monotonic() >= self._ends

    def answered(self, since: float) -> None:
        """Count a request."""
        self.outcome.ended = time.monotonic()
        self.outcome.latencies.append((self.outcome.ended - since) * 1e3)


def synchronous(flags: Sequence[str]) -> Run:
    """``LLMEngine`` and its step loop."""
    from embed_worker.vllm_engine import VllmEngine

    engine, encode = VllmEngine(flags, 1), _encoder(flags[0])
    return lambda job: _Steps(engine, _requests(job, encode)).run(job)


class _Steps:
    """Requests in an engine that is stepped."""

    def __init__(self, engine: Any, requests: list[Ids]) -> None:
        self._engine, self._requests = engine, requests
        self._added = 0
        self._missing: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._rows: dict[int, Vectors] = {}

    def run(self, job: Job) -> Outcome:
        """Keep as many requests in the engine as there are callers."""
        clock = _Clock(job)
        for _ in range(job.callers):
            self._add()
        while self._missing:
            for name in self._step():
                clock.answered(self._since.pop(name))
                if not clock.over:
                    self._add()
        return _shown(clock.outcome, [self._rows[index] for index in range(job.batch)])

    def _add(self) -> None:
        from embed_worker.engine import Params

        name, ids = str(self._added), self._requests[self._added % len(self._requests)]
        self._added += 1
        self._missing[name], self._since[name] = len(ids), time.monotonic()
        for index, own in enumerate(ids):
            self._engine.add(f"{name}-{index}", own, Params(), None)

    def _step(self) -> list[str]:
        """Make a step; names of the requests that it finished."""
        for key, row in self._engine.step():
            name, _, index = key.partition("-")
            self._rows[int(index)] = row
            self._missing[name] -= 1
        done = [name for name, left in self._missing.items() if not left]
        for name in done:
            del self._missing[name]
        return done


def asynchronous(flags: Sequence[str]) -> Run:
    """``AsyncLLM``, in an event loop that lasts as long as we do."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", *flags]))
    loop, encode = asyncio.new_event_loop(), _encoder(flags[0])

    async def load() -> Any:
        return AsyncLLM.from_engine_args(args)

    engine = loop.run_until_complete(load())
    return lambda job: loop.run_until_complete(_encode(engine, _requests(job, encode), job))


async def _encode(engine: Any, requests: list[Ids], job: Job) -> Outcome:
    from vllm import PoolingParams
    from vllm.inputs import tokens_input

    clock = _Clock(job)
    rows: list[Vectors] = []

    async def one(key: str, ids: list[int]) -> Vectors:
        async for output in engine.encode(tokens_input(ids), PoolingParams(task="embed"), key):
            last = output
        return np.asarray(last.outputs.data.float().numpy()[None], np.float32)

    async def caller(name: int) -> None:
        number = name
        while number == name or not clock.over:
            since, ids = time.monotonic(), requests[number % len(requests)]
            keys = (f"{since}-{name}-{index}" for index in range(len(ids)))
            rows[:] = await asyncio.gather(*map(one, keys, ids))
            clock.answered(since)
            number += job.callers

    await asyncio.gather(*map(caller, range(job.callers)))
    return _shown(clock.outcome, rows)


def _encoder(model: str) -> Callable[[list[str]], Ids]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda texts: [list(map(int, ids)) for ids in tokenizer(texts)["input_ids"]]


def _requests(job: Job, encode: Callable[[list[str]], Ids]) -> list[Ids]:
    seeds = range(job.seed, job.seed + (1 if job.look else _BODIES))
    return [encode(make_texts(job.batch, job.words, seed)) for seed in seeds]


def _shown(outcome: Outcome, rows: list[Vectors]) -> Outcome:
    vectors = np.concatenate(rows)
    outcome.width, outcome.vectors = vectors.shape[1], vectors.tobytes()
    return outcome


if __name__ == "__main__":
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    main(*sys.argv[1:])
