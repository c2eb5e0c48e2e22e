"""`tensorway up` as a person uses it, with fake engines and every process real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

FAKE = ("fake-model", "--engine", "fake")


def tensorway(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "tensorway.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def descendants(pid: int) -> set[int]:
    """Every process that descends from this one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(c) for c in children}.union(*(descendants(int(c)) for c in children))


def living(pids: set[int]) -> set[int]:
    """Those that still run."""
    return {pid for pid in pids if Path(f"/proc/{pid}/exe").exists()}


def wait_until_gone(pids: set[int]) -> None:
    """Return once none of them runs."""
    while living(pids):
        time.sleep(0.01)


def test_starts_serves_and_drains(up) -> None:
    """Two workers come up, the front doors answer, and Ctrl-C ends all of it with status 0."""
    with up(*FAKE, "--workers", "2", "--metrics-port", "0") as fleet:
        processes = descendants(fleet.process.pid)
        endpoints = [worker.endpoint for worker in fleet.workers()]
        assert endpoints == ["tensorway.worker-1.embed", "tensorway.worker-2.embed"]
        shown = tensorway("models", "--router", fleet.grpc)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert [line.split()[0] for line in shown.stdout.splitlines()] == ["MODEL", "fake-model"]
        shown = tensorway("workers", "--router", fleet.grpc)
        assert shown.stdout.count("ready") == 2
        assert fleet.workers()[1].metrics_address in shown.stdout
        shown = tensorway("workers", "--router", fleet.grpc, "--json", "--model", "fake-model")
        assert '"endpoint": "tensorway.worker-2.embed"' in shown.stdout
    assert fleet.process.returncode == 0, fleet.log.read_text()
    assert not living(processes)
    assert "worker-2  │ " in fleet.log.read_text()


def test_first_to_fail_stops_all(up) -> None:
    """One dead worker stops the whole launch, with its name and status 1 (E10)."""
    with up(*FAKE, "--workers", "2") as fleet:
        processes = descendants(fleet.process.pid)
        worker = next(pid for pid, c in fleet.services().items() if "tensorway.worker-2.embed" in c)
        os.kill(worker, signal.SIGKILL)
        assert fleet.process.wait(60) == 1
    assert "worker-2 was killed by SIGKILL; everything was stopped" in fleet.log.read_text()
    assert not living(processes)


def test_nothing_outlives_a_killed_parent(up) -> None:
    """After SIGKILL to `up` no service and no engine is left."""
    with up(*FAKE) as fleet:
        processes = descendants(fleet.process.pid)
        assert len(processes) == 4, "router, shim, worker, its engine"
        fleet.process.kill()
        wait_until_gone(processes)


def test_second_signal_kills(up) -> None:
    """A second Ctrl-C does not wait for a service that hangs."""
    with up(*FAKE) as fleet:
        processes = descendants(fleet.process.pid)
        shim = next(pid for pid, c in fleet.services().items() if "rest_shim" in c)
        os.kill(shim, signal.SIGSTOP)
        fleet.process.send_signal(signal.SIGINT)
        while "Stopping" not in fleet.log.read_text():
            time.sleep(0.01)
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.process.wait(20) == 130
        wait_until_gone(processes)


def test_worker_that_cannot_start_is_named() -> None:
    """A flag that a worker refuses ends `up` with the worker's own words, to a program too."""
    flags = ("--port", "0", "--rest-port", "0", "--kv-transfer-config", "{}", "--json")
    ended = tensorway("up", *FAKE, *flags)
    assert ended.returncode == 1
    assert "--kv-transfer-config" in ended.stderr
    assert "worker-1 ended with status 2; everything was stopped" in ended.stderr
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["event"], last["process"]) == ("failed", "worker-1")
    assert last["message"] == "worker-1 ended with status 2"
    assert "--kv-transfer-config" in last["output"][-1]


def test_events_for_a_program() -> None:
    """With --json every state is a line on standard output, and nothing else is there."""
    names = {"router", "worker-1", "rest"}
    command = [sys.executable, "-m", "tensorway.cli", "up", *FAKE, "--json"]
    with subprocess.Popen(
        [*command, "--port", "0", "--rest-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        events = map(json.loads, process.stdout)
        assert set(next(events)["processes"]) == names
        ready = [next(events) for _ in names]
        assert {event["process"] for event in ready if event["event"] == "ready"} == names
        up = next(events)
        assert up["event"] == "up"
        with urllib.request.urlopen(f"{up['rest']}/models", timeout=60) as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["fake-model"]
        assert tensorway("models", "--router", up["grpc"]).returncode == 0
        process.send_signal(signal.SIGINT)
        assert [event["event"] for event in events] == ["stopping", "stopped"]
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param((), "what to serve? Give a MODEL", id="nothing"),
        pytest.param(("m", "--workers", "0"), "'--workers'", id="range"),
        pytest.param(("--fleet", "/no/such/file"), "'--fleet'", id="file"),
    ],
)
def test_bad_command_line_starts_nothing(args: tuple[str, ...], message: str) -> None:
    """A bad command line ends with status 2 and one line that names the flag."""
    ended = tensorway("up", *args)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_reader_who_leaves() -> None:
    """When nobody reads the events any more, everything is stopped, and said so in a line."""
    command = [sys.executable, "-m", "tensorway.cli", "up", *FAKE, "--json"]
    with subprocess.Popen(
        [*command, "--port", "0", "--rest-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(60) == 1
    assert told.endswith("Whoever read this has left; everything was stopped.\n")
    assert "Traceback" not in told


def test_no_router_is_one_line() -> None:
    """Asking where nobody listens fails with one line, not a traceback."""
    ended = tensorway("models", "--router", "127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: 127.0.0.1:1: ")
    assert len(ended.stderr.splitlines()) == 1
