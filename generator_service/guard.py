"""Engine processes that do not outlive the service, even when it is killed.

vLLM starts them itself, and one whose parent was killed goes on holding its memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def guard(pids: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that kills others once this one is gone, however it went.

    It waits for the end of a pipe, of which this process holds the other side.
    """
    victims = " ".join(str(pid) for pid in pids)
    process = subprocess.Popen(  # noqa: S603, numbers and nothing else
        ("/bin/sh", "-c", f"trap '' TERM INT; echo; read -r _; kill -9 {victims}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    # A signal to the whole group may come at once: it is deaf to it from here on.
    assert process.stdout is not None
    process.stdout.readline()
    return process
