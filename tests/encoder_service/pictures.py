"""Encoded images for the tests."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from tensorway.v1 import handoff_pb2


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(color: Any = "red", size: tuple[int, int] = (20, 10), mode: str = "RGB") -> bytes:
    """A PNG of one colour."""
    return encoded(Image.new(mode, size, color))


def image_input(data: bytes | None = None, **options: str) -> handoff_pb2.ImageInput:
    """An image of a request."""
    return handoff_pb2.ImageInput(data=data or picture(), options=options)
