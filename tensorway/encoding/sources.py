"""From a request's images to encoded images of known size, each checked on its own."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from urllib.parse import unquote

from tensorway import images
from tensorway.encoding.fetch import Fetcher
from tensorway.encoding.options import ImageOptions
from tensorway.encoding.together import together
from tensorway.errors import InvalidArgument
from tensorway.v1 import handoff_pb2

MAX_ID = 128
_MAX_OPTIONS = 32


class Sources:
    """Reads images; what is wrong with one is said with its index."""

    def __init__(self, options: ImageOptions, fetcher: Fetcher) -> None:
        self._options = options
        self._fetcher = fetcher

    def check(self, inputs: Sequence[handoff_pb2.ImageInput]) -> None:
        """Raise InvalidArgument for more images than a request may have."""
        if len(inputs) > self._options.max_images:
            raise InvalidArgument(
                f"images: expected at most {self._options.max_images}, got {len(inputs)}",
                field="images",
            )

    def size(self, image: handoff_pb2.ImageInput) -> int:
        """Bytes that an image takes at most until it is decoded."""
        if image.WhichOneof("source") == "url" and not _is_data(image.url):
            return self._options.max_image_bytes
        return image.ByteSize()

    async def read(self, inputs: Sequence[handoff_pb2.ImageInput]) -> list[images.Encoded]:
        """The images with their sizes; raises InvalidArgument for the first bad one."""
        return await together(self._one(index, image) for index, image in enumerate(inputs))

    async def _one(self, index: int, image: handoff_pb2.ImageInput) -> images.Encoded:
        try:
            _check(image)
            data = await self._bytes(image)
            limit, options = self._options.max_image_pixels, dict(image.options)
            return await asyncio.to_thread(images.inspect, data, limit, options)
        except ValueError as error:
            named = f"{image.id[:MAX_ID]!r}: {error}" if image.id else str(error)
            raise bad_image(index, named) from None

    async def _bytes(self, image: handoff_pb2.ImageInput) -> bytes:
        match image.WhichOneof("source"):
            case "data":
                data = image.data
            case "url" if _is_data(image.url):
                data = await asyncio.to_thread(_data_url, image.url)
            case "url":
                data = await self._fetcher.fetch(image.url)
            case _:
                raise ValueError("expected data or a url, got neither")
        if len(data) > self._options.max_image_bytes:
            limit = self._options.max_image_bytes
            raise ValueError(f"expected at most {limit} bytes, got {len(data)}")
        return data


def _check(image: handoff_pb2.ImageInput) -> None:
    if len(image.id) > MAX_ID:
        raise ValueError(f"id: expected at most {MAX_ID} characters, got {len(image.id)}")
    if len(image.options) > _MAX_OPTIONS:
        raise ValueError(f"options: expected at most {_MAX_OPTIONS}, got {len(image.options)}")


def bad_image(index: int, error: object) -> InvalidArgument:
    """An error of one image, with its place in the request."""
    field = f"images[{index}]"
    return InvalidArgument(f"{field}: {error}", field=field)


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.replace(" ", "").lower().endswith(";base64"):
        raise ValueError("expected a data: URL with ;base64, got one without")
    # As forgiving as browsers: escapes, line breaks, and padding that is missing.
    plain = "".join(unquote(body).split()).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected base64 in the data: URL, got something else") from None
