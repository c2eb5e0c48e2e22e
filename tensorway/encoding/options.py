"""Flags of everything that runs an encoder."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tensorway.flags import flag
from tensorway.options import MIB, SECONDS

_COUNT = click.IntRange(min=1)


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


@dataclass(frozen=True)
class ImageOptions:
    """Which images are taken."""

    max_images: int = flag(16, help="Most images in a request.", type=_COUNT)
    max_image_bytes: int = flag(20 * MIB, help="Largest encoded image.", type=_COUNT)
    max_image_pixels: int = flag(
        40_000_000, help="Most pixels of an image, by its header.", type=_COUNT
    )
    image_background: str = flag("white", help="Colour behind the transparent parts of images.")
    image_host: tuple[str, ...] = flag(
        (), help="Host (or host:port) to fetch images from by http(s) URL; several may be given."
    )
    image_timeout: float = flag(10.0, help="Seconds to fetch an image.", type=SECONDS)
    image_redirects: int = flag(
        3, help="Most redirects, each of them to an allowed host.", type=click.IntRange(0)
    )
