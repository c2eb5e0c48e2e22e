"""A tiny encoder without torch, for demonstrations: it sees the colour of a picture.

Its rows are a text model's own embeddings of the colour's name, so the model answers as if
the name stood in the place of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

from tensorway.encoder import VisionEncoderBackend
from tensorway.handoff.elements import Rows
from tensorway.images import Image

COLORS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (30, 60, 220),
    "yellow": (240, 220, 40),
    "orange": (250, 140, 20),
    "purple": (130, 40, 160),
}
_EMBEDDINGS = "model.embed_tokens.weight"


class ColorEncoder(VisionEncoderBackend):
    """Rows of the name of an image's mean colour."""

    revision = "1"

    def build(self, model_id: str) -> None:
        """Read names' embeddings from a folder with model.safetensors and tokenizer.json."""
        folder = Path(model_id)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        with safe_open(folder / "model.safetensors", framework="np") as weights:
            embeddings = weights.get_tensor(_EMBEDDINGS)
        # Outside the text model's vocabulary, so that no text can contain it.
        self.image_token_id = len(embeddings)
        self._rows: dict[str, Rows] = {
            name: embeddings[tokenizer.encode(f" {name}", add_special_tokens=False).ids]
            for name in COLORS
        }

    def forward_batch(self, items: Sequence[Image]) -> Sequence[Rows]:
        """The rows of each image's colour."""
        return [self._rows[name_of(image)] for image in items]


def name_of(image: Image) -> str:
    """The colour that is nearest to the image's mean."""
    mean = image.pixels.mean(axis=(0, 1))
    return min(COLORS, key=lambda name: float(np.sum((mean - COLORS[name]) ** 2)))
