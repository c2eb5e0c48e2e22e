"""Freed memory that stays with the process."""

from __future__ import annotations

import subprocess
import sys

# Messages that come and go: after the first ones, how many new pages ten more of them take.
PAGES = """
import resource, sys
from tensorway import memory

def messages():
    return [bytearray(8 << 20) for _ in range(4)]

if sys.argv[1] == "keep":
    assert memory.keep_freed(128)
for _ in range(3):
    messages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    messages()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_messages_take_no_new_pages() -> None:
    """Ten times 32 MiB are had from what was freed before; else each page is new."""
    pages = {
        how: int(subprocess.check_output([sys.executable, "-c", PAGES, how], timeout=60))
        for how in ("default", "keep")
    }
    assert pages["keep"] < 100
    assert pages["default"] > 10_000
