"""What is asked of transformers and of the services alike."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

# A token of SmolLM2 that no text has: "<empty_output>".
IMAGE_TOKEN = 16
PROMPTS = {
    "none": [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47],
    "one": [1, 4093, 198, IMAGE_TOKEN, 1780, 314, 451, 47],
    "several": [IMAGE_TOKEN, 1, 4093, IMAGE_TOKEN, IMAGE_TOKEN, 1780, 314, 451, 47],
}
# Positions with a zero row, or with the token 0, before the end of a prompt.
ZEROS = 300
TAIL = [1780, 314, 451, 47]


def picture(seed: int) -> bytes:
    """A PNG of noise, other noise for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), np.uint8)
    return png(Image.fromarray(pixels))


def png(image: Image.Image) -> bytes:
    """An image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
