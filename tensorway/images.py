"""Images as callers send them: checked from the header, then decoded to plain RGB.

What is decoded is always the same kind of picture: the first frame, turned as its EXIF
orientation says, transparent parts on the configured background, 8 bits of RGB.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

# Formats with sound decoders; others (EPS, PSD, FITS, ...) are never even tried.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Modes that Pillow converts to RGB by their meaning.
_PLAIN = frozenset({"1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB", "HSV"})
_TRANSPARENT = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})
_DEEP = frozenset({"I;16", "I;16B", "I;16L"})
_SCAN, _MAX_SCANS = b"\xff\xda", 64
_BOMBS = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)


@dataclass(frozen=True)
class Image:
    """A decoded image, as a backend's ``preprocess`` receives it."""

    pixels: NDArray[np.uint8]
    """[height, width, 3], RGB."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The request's options for preprocessing; names are the backend's own."""

    @property
    def width(self) -> int:
        """Pixels in a row."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Pixels in a column."""
        return int(self.pixels.shape[0])


@dataclass(frozen=True)
class Encoded:
    """An encoded image of which only the header was read."""

    data: bytes
    mode: str
    """Pillow's name of the pixel format."""
    width: int
    height: int
    options: Mapping[str, str]

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.width * self.height

    @property
    def decoded_bytes(self) -> int:
        """Memory that its pixels take as RGB."""
        return 3 * self.pixels

    def key(self, context: bytes) -> bytes:
        """BLAKE3 of the image and all that its encoding depends on."""
        options = repr(sorted(self.options.items())).encode()
        shape = f"{self.mode} {self.width} {self.height}".encode()
        digest = blake3()
        for part in (context, options, shape, self.data):
            # With lengths, so that no two lists of parts are the same bytes.
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()


def inspect(data: bytes, max_pixels: int, options: Mapping[str, str]) -> Encoded:
    """Read the header and nothing more; raises ValueError."""
    try:
        picture = _open(data)
    except _BOMBS as error:
        raise ValueError(f"expected at most {max_pixels} pixels: {error}") from None
    width, height = picture.size
    if not 1 <= width * height <= max_pixels:
        raise ValueError(
            f"expected at most {max_pixels} pixels, got {width * height} ({width} x {height})"
        )
    # Each scan is a pass over all pixels, and may be a few bytes; encoders write about ten.
    if picture.format == "JPEG" and (scans := data.count(_SCAN)) > _MAX_SCANS:
        raise ValueError(f"expected at most {_MAX_SCANS} scans, got {scans}")
    return Encoded(data, picture.mode, width, height, options)


def decode(encoded: Encoded, background: str) -> Image:
    """The whole picture as RGB; raises ValueError for what cannot be decoded."""
    # Closed at once: an error's frames would keep what was decoded so far.
    with closing(_open(encoded.data)) as picture:
        try:
            picture.load()
            ImageOps.exif_transpose(picture, in_place=True)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise all kinds of errors at broken files
            raise ValueError(f"broken image data: {error}") from None
        pixels = np.asarray(_to_rgb(picture, background))
    pixels.flags.writeable = False
    return Image(pixels, encoded.options)


def _open(data: bytes) -> Pillow.Image:
    try:
        return Pillow.open(io.BytesIO(data), formats=FORMATS)
    except (MemoryError, *_BOMBS):
        raise
    except Exception:
        kinds = ", ".join(FORMATS)
        raise ValueError(f"expected an image ({kinds}), got {len(data)} other bytes") from None


def _to_rgb(picture: Pillow.Image, background: str) -> Pillow.Image:
    if picture.mode in _DEEP:
        return _from_deep(picture, background)
    if picture.mode in _TRANSPARENT or "transparency" in picture.info:
        canvas = Pillow.new("RGBA", picture.size, background)
        return Pillow.alpha_composite(canvas, picture.convert("RGBA")).convert("RGB")
    if picture.mode not in _PLAIN:
        raise ValueError(f"expected a picture with up to 16 bits, got mode {picture.mode}")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _from_deep(picture: Pillow.Image, background: str) -> Pillow.Image:
    levels = np.asarray(picture)
    # The upper byte, as Pillow itself takes it of colours of 16 bits.
    grey = Pillow.fromarray((levels >> 8).astype(np.uint8)).convert("RGB")
    if (clear := picture.info.get("transparency")) is not None:
        grey.paste(background, mask=Pillow.fromarray(levels == clear))
    return grey
