"""What is guarded dies with the one who guards it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SERVICE = """
import subprocess, sys, time
from generator_service.guard import guard
engine = subprocess.Popen(["sleep", "60"])
held = guard([engine.pid])
print(engine.pid, held.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_service_leaves_no_engine() -> None:
    """SIGKILL of the service is the end of its engine, and of the guard."""
    command = [sys.executable, "-c", SERVICE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        engine, held = map(int, service.stdout.readline().split())
        assert running(engine)
        os.kill(held, signal.SIGTERM)
        time.sleep(0.1)
        assert running(engine), "a signal to the whole group ends the service first"
        service.kill()
    deadline = time.monotonic() + 60
    while running(engine) or running(held):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process is there, and not only waiting to be collected."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
