"""Flags of everything that runs an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from PIL import ImageColor

from tensorway.flags import flag
from tensorway.options import MIB, SECONDS, Matching, Seconds

_COUNT = click.IntRange(min=1)


class Color(click.ParamType[str]):
    """A colour by its name, or as #rrggbb."""

    name = "color"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text of a flag."""
        try:
            ImageColor.getrgb(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        return str(value)


@dataclass(frozen=True)
class EncoderOptions:
    """Which encoder, and how much of it."""

    backend: str | None = flag(None, help="Encoder class, as package.module:Class.")
    backend_model: str = flag("", help="Model that the encoder loads; its `build` gets it.")
    encoder_cache_mib: int = flag(
        512,
        help="Memory for encoded images, in MiB; 0 turns the cache off.",
        type=click.IntRange(0),
    )
    max_pending_images: int = flag(
        256, help="Most images in the encoder, waiting ones included.", type=_COUNT
    )
    max_pending_mib: int = flag(
        4096,
        help="Most memory for images, as sent and decoded, and for results not sent yet, in MiB.",
        type=_COUNT,
    )
    encoder_timeout: float = flag(
        300.0,
        help="Seconds that one call of `forward_batch` or `preprocess` may take; then the encoder "
        "is taken for hung, and the process ends with status 1.",
        type=Seconds(min=0.1),
    )


@dataclass(frozen=True)
class ImageOptions:
    """Which images are taken."""

    max_images: int = flag(16, help="Most images in a request.", type=_COUNT)
    max_image_bytes: int = flag(20 * MIB, help="Largest encoded image.", type=_COUNT)
    max_image_pixels: int = flag(
        40_000_000, help="Most pixels of an image, by its header.", type=_COUNT
    )
    image_background: str = flag(
        "white", help="Colour behind the transparent parts of images.", type=Color()
    )
    image_host: tuple[str, ...] = flag(
        (),
        help="Host (or host:port) to fetch images from by http(s) URL; several may be given.",
        type=Matching(r"[^/\s]+", "host or host:port"),
    )
    image_timeout: float = flag(10.0, help="Seconds to fetch an image.", type=SECONDS)
    image_redirects: int = flag(
        3, help="Most redirects, each of them to an allowed host.", type=click.IntRange(0)
    )
