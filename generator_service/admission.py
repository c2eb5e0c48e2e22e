"""How much a generator takes on: requests, and bytes of encoder results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorway.errors import ResourceExhausted

_RETRY_SECONDS = 1.0


class Admission:
    """Permits; what has no room is refused at once."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.requests = 0
        self.bytes = 0
        self._max_requests = max_requests
        self._max_bytes = max_bytes

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold room for a request."""
        if self.requests >= self._max_requests:
            raise ResourceExhausted(
                f"the generator has {self.requests} of {self._max_requests} requests "
                "(--max-requests)",
                retry_after=_RETRY_SECONDS,
            )
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def result(self, size: int) -> Iterator[None]:
        """Hold room for the bytes of an encoder result."""
        if self.bytes + size > self._max_bytes:
            raise ResourceExhausted(
                f"the generator holds {self.bytes} of {self._max_bytes} bytes of encoder results, "
                f"no room for {size} (--max-held-mib)",
                retry_after=_RETRY_SECONDS,
            )
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size
