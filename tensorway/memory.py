"""Freed memory that stays with the process, so that large messages need no new pages."""

from __future__ import annotations

import ctypes

from tensorway.options import MIB

# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The most that glibc takes.
_LARGEST_MMAP_THRESHOLD = 32 * MIB


def keep_freed(mib: int) -> bool:
    """Give free memory back to the system only above so many MiB; whether that is possible.

    By default glibc gives back most of what a message of some MiB took, and the next one
    pays for every page anew. Only glibc has this setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mapped = mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(mapped and mallopt(_TRIM_THRESHOLD, mib * MIB))
