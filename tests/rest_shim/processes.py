"""Our commands as processes of their own, on free ports."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def started(
    module: str, *arguments: str, **env: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """``python -m module``, once it listens, and its port; leaving stops it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments, "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    assert process.stderr is not None
    log = []
    while line := await process.stderr.readline():
        log.append(line)
        if found := re.search(rb"listening on \S+:(\d+)", line):
            break
    else:
        raise AssertionError(b"".join(log).decode())
    drain = asyncio.create_task(process.stderr.read())
    try:
        yield process, int(found[1])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await drain
