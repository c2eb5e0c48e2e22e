"""A deadline for streams whose caller set none: everything ends some time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tensorway.errors import DeadlineExceeded
from tensorway.handlers import Context


def seconds_left(context: Context, default: float) -> float:
    """Seconds until the caller's deadline, or the default when there is none."""
    left = context.time_remaining()
    return default if left is None else left


@asynccontextmanager
async def deadline(context: Context, default: float) -> AsyncIterator[None]:
    """End what is inside after `default` seconds, unless the caller set a deadline."""
    seconds = None if context.time_remaining() is not None else default
    try:
        async with asyncio.timeout(seconds) as timer:
            yield
    except TimeoutError:
        if timer.expired():
            raise DeadlineExceeded(f"not finished within {seconds:g} s") from None
        raise
