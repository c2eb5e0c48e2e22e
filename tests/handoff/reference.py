"""Run by test_generation in a process of its own: the answers of transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.handoff.checkpoints import IMAGE_TOKEN, Reference
from tests.handoff.test_generation import PROMPTS, picture

WIDTH, ZEROS = 576, 300
TAIL = [1780, 314, 451, 47]


def main(folder: str, output: str) -> None:
    """Write all answers to a file."""
    reference, answers = Reference(Path(folder)), {}
    for name, ids in PROMPTS.items():
        images = [_open(i) for i in range(ids.count(IMAGE_TOKEN))]
        answers[name] = np.array(reference.generate(ids, images, 12))
    ids, zero = [1, *[0] * (ZEROS + 1), *TAIL], torch.zeros(WIDTH)
    many = dict.fromkeys(range(1, ZEROS + 1), zero)
    for name, rows in (("mask_many", many), ("mask_one", {ZEROS + 1: zero})):
        logprobs = reference.next_logprobs(ids, rows)
        answers[f"{name}_token"] = np.array(int(logprobs.argmax()))
        answers[f"{name}_logprob"] = np.array(float(logprobs.max()))
    np.savez(output, **answers)


def _open(seed: int) -> np.ndarray:
    import io

    return np.asarray(Image.open(io.BytesIO(picture(seed))))


if __name__ == "__main__":
    main(*sys.argv[1:])
