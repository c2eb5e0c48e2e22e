"""How much an encoder takes on: images, and the memory that they and their rows take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorway.errors import ResourceExhausted, TooLarge

_RETRY_SECONDS = 1.0


class Admission:
    """Room for images; what has none is refused at once."""

    def __init__(self, max_images: int, max_bytes: int) -> None:
        self.images = 0
        self.bytes = 0
        self._max_images = max_images
        self._max_bytes = max_bytes

    @contextmanager
    def enter(self, images: int) -> Iterator[Room]:
        """Hold room for the images of a request, and for the memory that they come to take."""
        if self.images + images > self._max_images:
            raise ResourceExhausted(
                f"the encoder has {self.images} of {self._max_images} images, no room for "
                f"{images} (--max-pending-images)",
                retry_after=_RETRY_SECONDS,
            )
        self.images += images
        room = Room(self)
        try:
            yield room
        finally:
            self.images -= images
            room.leave()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold room for so many bytes."""
        self.take(size, 0)
        try:
            yield
        finally:
            self.bytes -= size

    def take(self, size: int, held: int) -> None:
        """Take room for one who has `held` bytes already."""
        if held + size > self._max_bytes:
            raise TooLarge(
                f"the request needs {held + size} bytes of memory for its images, "
                f"{self._max_bytes} are allowed (--max-pending-mib)"
            )
        if self.bytes + size > self._max_bytes:
            raise ResourceExhausted(
                f"the encoder holds {self.bytes} of {self._max_bytes} bytes of images, no room "
                f"for {size} (--max-pending-mib)",
                retry_after=_RETRY_SECONDS,
            )
        self.bytes += size


class Room:
    """What one request takes of the encoder's memory."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def take(self, size: int) -> None:
        """Take so many bytes more."""
        self._admission.take(size, self._bytes)
        self._bytes += size

    def leave(self) -> None:
        """Give everything back."""
        self._admission.bytes -= self._bytes
        self._bytes = 0
