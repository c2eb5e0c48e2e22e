"""Encoder and generator services in processes of their own, and what can be asked of them."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tensorway.channels import Dialer
from tensorway.options import DialOptions
from tensorway.v1 import (
    common_pb2,
    encoder_pb2_grpc,
    generator_pb2,
    generator_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

START_SECONDS = 150.0
GENERATE = "/tensorway.v1.GeneratorService/Generate"


@dataclass
class Answer:
    """All messages of a generation as one."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: int = 0
    stop_reason: str = ""
    request_id: str = ""
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    messages: int = 0

    def add(self, part: generator_pb2.GenerateResponse) -> None:
        """Take the next message."""
        self.token_ids += part.token_ids
        self.text += part.text
        self.logprobs += [
            [(one.token_id, one.logprob) for one in place.candidates] for place in part.logprobs
        ]
        self.finish_reason, self.stop_reason = part.finish_reason, part.stop_reason
        self.request_id, self.usage = part.request_id, part.usage
        self.messages += 1


async def gathered(responses: Any) -> Answer:
    """The whole answer of a call."""
    answer = Answer()
    async for part in responses:
        answer.add(part)
    return answer


@dataclass
class Service:
    """A running service."""

    process: asyncio.subprocess.Process
    log: Path
    channel: grpc.aio.Channel = field(init=False)
    address: str = ""

    @property
    def generator(self) -> Any:
        """Its GeneratorService."""
        return generator_pb2_grpc.GeneratorServiceStub(self.channel)

    @property
    def encoder(self) -> Any:
        """Its EncoderService."""
        return encoder_pb2_grpc.EncoderServiceStub(self.channel)

    async def generate(self, messages: Iterable[Any], timeout: float = 60.0) -> Answer:
        """The generator's answer to messages, or to bytes in their place."""
        call = self.channel.stream_stream(
            GENERATE,
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=generator_pb2.GenerateResponse.FromString,
        )
        return await gathered(call(iter(messages), timeout=timeout))

    async def itself(self) -> model_pb2.Worker:
        """Its own description."""
        stub = model_pb2_grpc.ModelServiceStub(self.channel)
        (worker,) = (await stub.ListWorkers(model_pb2.ListWorkersRequest(), timeout=30)).workers
        return worker

    async def lists(self, *names: str) -> None:
        """Wait until a router knows the models."""
        stub = model_pb2_grpc.ModelServiceStub(self.channel)
        async with asyncio.timeout(60):
            while True:
                listed = await stub.ListModels(model_pb2.ListModelsRequest(), timeout=30)
                if {*names} <= {model.name for model in listed.models}:
                    return
                await asyncio.sleep(0.1)

    async def idle(self, seconds: float = 30.0) -> None:
        """Wait until it holds no request."""
        async with asyncio.timeout(seconds):
            while (await self.itself()).load.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def health(self) -> int:
        """What it tells an orchestrator."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)).status

    async def metrics(self) -> str:
        """What its /metrics shows."""
        address = (await self.itself()).metrics_address
        return await asyncio.to_thread(_get, f"http://{address}/metrics")

    def resident(self) -> int:
        """Bytes of memory that the process has."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def children(self) -> list[int]:
        """Processes that it started, and those that they started."""
        found, queue = [], [self.process.pid]
        while queue:
            task = Path(f"/proc/{queue.pop()}/task")
            pids = [p for path in task.glob("*/children") for p in path.read_text().split()]
            queue += [int(pid) for pid in pids]
            found += [int(pid) for pid in pids]
        return found

    async def logged(self, pattern: str, seconds: float) -> re.Match[str]:
        """Wait until its log has a match; the process must live until then."""
        async with asyncio.timeout(seconds):
            while (match := re.search(pattern, self.log.read_text())) is None:
                assert self.process.returncode is None, self.log.read_text()[-4000:]
                await asyncio.sleep(0.05)
        return match


class Launcher:
    """Starts services, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._services: list[Service] = []

    async def start(
        self, module: str, *flags: str, env: Mapping[str, str] | None = None, wait: bool = True
    ) -> Service:
        """``python -m module flags``; ready to answer unless told not to wait."""
        log = self._folder / f"{module}-{len(self._services)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, "--port", "0", "--metrics-port", "0", *flags),
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
            )
        service = Service(process, log)
        self._services.append(service)
        address = await service.logged(r"listening on (127\.0\.0\.1:\d+)", START_SECONDS)
        service.address = address[1]
        service.channel = Dialer(DialOptions()).open(service.address)
        if wait:
            await service.logged("ready: ", START_SECONDS)
        return service

    async def close(self) -> None:
        """End all services."""
        for service in self._services:
            with suppress(ProcessLookupError):
                service.process.terminate()
        for service in self._services:
            try:
                await asyncio.wait_for(service.process.wait(), 60)
            except TimeoutError:
                service.process.kill()
            await service.channel.close()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()
