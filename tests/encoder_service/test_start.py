"""The encoder service as a process: flags, start, registration, and its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tensorway.v1 import encoder_pb2, model_pb2, model_pb2_grpc
from tests.encoder_service.pictures import image_input
from tests.handoff.services import Launcher

MEAN = ("--backend", "tests.encoder_service.backends:MeanEncoder", "--name", "mean")


@pytest.fixture
async def launcher(tmp_path) -> AsyncIterator[Launcher]:
    """Starts services that end with the test."""
    launcher = Launcher(tmp_path)
    try:
        yield launcher
    finally:
        await launcher.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--backend: expected an encoder class"),
        (("--backend", "no.such:Class"), "--backend: backend: expected package.module:Class"),
        (("--backend", "tests.encoder_service.broken:Forgotten"), "would never be called"),
        (("--backend", "tests.encoder_service.broken:Refusing"), "--backend-model: not this one"),
        ((*MEAN, "--max-images", "0"), "--max-images"),
        ((*MEAN, "--image-background", "whit"), "--image-background"),
        ((*MEAN, "--image-host", "https://example.com/"), "--image-host"),
        ((*MEAN, "--encoder-timeout", "0"), "--encoder-timeout"),
    ],
)
def test_mistakes_stop_the_start_with_one_line(flags: tuple[str, ...], message: str) -> None:
    """Status 2, and a line that names the flag."""
    command = [sys.executable, "-m", "encoder_service", "--port", "0", *flags]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2, ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_it_registers_and_is_found_by_its_name(launcher: Launcher) -> None:
    """A router lists the encoder, and passes its calls on."""
    router = await launcher.start("router", wait=False)
    await launcher.start("encoder_service", *MEAN, "--router", router.address)

    async with asyncio.timeout(60):
        while not (listed := await _models(router.channel)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    (model,) = listed
    assert (model.name, model.dimensions, model.dtype) == ("mean", 8, "float32")
    assert list(model.tasks) == [model_pb2.TASK_ENCODE]
    request = encoder_pb2.EncodeRequest(model="mean", images=[image_input()])
    parts = [part async for part in router.encoder.Encode(request, timeout=60)]
    assert parts[-1].end.rows == 2


async def test_it_is_alive_at_once_and_ready_when_proven(
    launcher: Launcher, tmp_path: Path
) -> None:
    """While it loads: NOT_SERVING, and calls are refused, not kept waiting."""
    file = tmp_path / "weights"
    backend = ("--backend", "tests.encoder_service.broken:Slow", "--backend-model", str(file))
    flags = (*backend, "--name", "mean")
    service = await launcher.start("encoder_service", *flags, wait=False)
    request = encoder_pb2.EncodeRequest(model="mean", images=[image_input()])
    assert await service.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="loading") as raised:
        [_ async for _ in service.encoder.Encode(request, timeout=60)]
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    file.touch()
    await service.logged("ready: mean, rows of 8", 60)
    assert await service.health() == health_pb2.HealthCheckResponse.SERVING
    assert 'tensorway_encoder_images_total{origin="encoded"} 1.0' in await service.metrics()


async def test_what_is_in_flight_is_finished_at_the_end(launcher: Launcher, tmp_path: Path) -> None:
    """SIGTERM: nothing new, the rest is answered, status 0."""
    file = tmp_path / "result"
    backend = ("--backend", "tests.encoder_service.broken:Late", "--backend-model", str(file))
    flags = (*backend, "--name", "late")
    service = await launcher.start("encoder_service", *flags)
    request = encoder_pb2.EncodeRequest(model="late", images=[image_input()])
    call = service.encoder.Encode(request, timeout=60)
    reading = asyncio.create_task(_all(call))
    async with asyncio.timeout(60):
        while not (await service.itself()).load.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    service.process.send_signal(signal.SIGTERM)
    await service.logged("SIGTERM: stopping", 60)
    file.touch()
    assert (await reading)[-1].end.rows == 2
    assert await asyncio.wait_for(service.process.wait(), 60) == 0


async def test_an_encoder_that_hangs_ends_the_service(launcher: Launcher) -> None:
    """In flight: UNAVAILABLE; exit status 1, whatever its thread still does."""
    flags = ("--backend", "tests.encoder_service.broken:Hung", "--name", "hung")
    service = await launcher.start("encoder_service", *flags, "--encoder-timeout", "2")
    request = encoder_pb2.EncodeRequest(model="hung", images=[image_input()])
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _all(service.encoder.Encode(request, timeout=60))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(service.process.wait(), 60) == 1
    assert "EncoderHangs: forward_batch takes longer than 2 s" in service.log.read_text()


async def test_an_encoder_that_never_loads_can_be_stopped(launcher: Launcher) -> None:
    """SIGTERM ends the process although the load goes on."""
    flags = ("--backend", "tests.encoder_service.broken:Stuck", "--name", "stuck")
    service = await launcher.start("encoder_service", *flags, wait=False)
    service.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(service.process.wait(), 60) == 0


async def _all(call) -> list[encoder_pb2.EncodeRequest]:
    return [part async for part in call]


async def _models(channel: grpc.aio.Channel) -> list[model_pb2.Model]:
    stub = model_pb2_grpc.ModelServiceStub(channel)
    return list((await stub.ListModels(model_pb2.ListModelsRequest(), timeout=30)).models)
