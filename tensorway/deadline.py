"""How long a call may take: everything ends some time, whoever forgot to say when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from tensorway.errors import DeadlineExceeded

if TYPE_CHECKING:
    from tensorway.handlers import Context


def seconds_left(context: Context, default: float) -> float:
    """Seconds until the caller's deadline, or the default when there is none."""
    left = context.time_remaining()
    return default if left is None else left


def deadline(context: Context, default: float) -> AbstractAsyncContextManager[None]:
    """End what is inside after `default` seconds, unless the caller set a deadline."""
    return within(None if context.time_remaining() is not None else default)


@asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[None]:
    """End what is inside after so many seconds with DeadlineExceeded; None: never."""
    try:
        async with asyncio.timeout(seconds) as timer:
            yield
    except TimeoutError:
        if timer.expired():
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
        raise
