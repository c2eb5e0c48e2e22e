"""The processes under test: started with a log, measured with all they start, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

START_SECONDS, STOP_SECONDS = 240.0, 15.0
MIB = 1024 * 1024
_RESET_PEAK = "5"


class Ended(RuntimeError):
    """A process that should run ended, or did not come up."""


class Process:
    """A process and everything that it started."""

    def __init__(self, name: str, child: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.child, self.log = name, child, log
        self._root = psutil.Process(child.pid)

    def members(self) -> list[psutil.Process]:
        """All its processes now."""
        return [self._root, *self._root.children(recursive=True)]

    def stop(self) -> None:
        """Ask it to end, then kill what is left of it."""
        members = self.members() if self.child.poll() is None else []
        self.child.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(STOP_SECONDS)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        # Some are born while it ends; they are of its group.
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


class Launcher:
    """Starts processes whose output goes to files; the stack stops them."""

    def __init__(self, stack: ExitStack, logs: Path) -> None:
        self._stack, self._logs = stack, logs
        self._all: list[Process] = []

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], *, piped: bool = False
    ) -> Process:
        """Start one; with pipes to it when it is a load generator."""
        log = self._logs / f"{name}.log"
        output = self._stack.enter_context(log.open("wb"))
        child = subprocess.Popen(
            # They must not outlive us, even if we are killed.
            ("setpriv", "--pdeathsig", "KILL", "--", *argv),
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            start_new_session=True,
        )
        process = Process(name, child, log)
        self._stack.callback(process.stop)
        self._all.append(process)
        return process

    def python(
        self, name: str, *argv: str, env: Mapping[str, str] | None = None, piped: bool = False
    ) -> Process:
        """Start a module with our own Python."""
        return self.start(name, (sys.executable, "-m", *argv), env or {}, piped=piped)

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until it is so; raises Ended when a process ends or time is up."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise Ended(f"{what} did not come up in {START_SECONDS:.0f} s; logs: {self._logs}")
            time.sleep(0.25)

    def check(self) -> None:
        """Raise Ended when a process is gone."""
        for process in self._all:
            if (status := process.child.poll()) is not None:
                tail = process.log.read_text(errors="replace")[-2000:]
                raise Ended(f"{process.name} ended with status {status}:\n{tail}")


def leave_on_sigterm() -> None:
    """Have SIGTERM end us by an exception, so that what was started is stopped."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def cpu_seconds(processes: Sequence[Process]) -> float:
    """User and system time of all of them until now."""
    return sum(map(_seconds, _members(processes)))


def peak_mib(processes: Sequence[Process]) -> float:
    """Most memory that each held since the last reset, added up; shared pages count twice."""
    return sum(map(_peak, _members(processes)))


def resident_mib(processes: Sequence[Process]) -> float:
    """Memory that they hold now, added up; shared pages count twice."""
    return sum(member.memory_info().rss for member in _members(processes)) / MIB


def reset_peak(processes: Sequence[Process]) -> None:
    """Start measuring the peak anew."""
    for member in _members(processes):
        with suppress(OSError):
            Path(f"/proc/{member.pid}/clear_refs").write_text(_RESET_PEAK)


def _members(processes: Sequence[Process]) -> list[psutil.Process]:
    return [member for process in processes for member in process.members()]


def _seconds(member: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = member.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _peak(member: psutil.Process) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{member.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MIB
    return 0.0
