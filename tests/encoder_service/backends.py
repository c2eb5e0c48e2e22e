"""Encoders of the tests: NumPy only, and as slow or broken as a test needs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorway.encoder import Preprocessed, VisionEncoderBackend
from tensorway.images import Image

WIDTH = 8
TOKEN = 7


class MeanEncoder(VisionEncoderBackend):
    """As many rows as the image is wide in tens of pixels, filled with its mean."""

    image_token_id = TOKEN
    max_batch_cost = 4
    revision = "r1"

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.model_id = ""
        self.closed = False
        self.entered = 0
        self.gate = threading.Event()
        self.gate.set()

    def build(self, model_id: str) -> None:
        """Remember what was asked."""
        self.model_id = model_id
        self.threads.add(threading.current_thread().name)

    def forward_batch(self, items: Sequence[Image]) -> Sequence[Any]:
        """Rows of means, once the gate is open."""
        self.entered += 1
        self.gate.wait(60)
        self.batches.append(len(items))
        self.threads.add(threading.current_thread().name)
        return [self.rows(image) for image in items]

    def rows(self, image: Image) -> np.ndarray:
        """What one image is encoded to."""
        count = max(1, image.width // 10)
        return np.full((count, WIDTH), image.pixels.mean() / 255, np.float32)

    def close(self) -> None:
        """Remember that."""
        self.closed = True
        self.threads.add(threading.current_thread().name)


class PreprocessingEncoder(MeanEncoder):
    """Refuses images with the option `refuse`, breaks on `break`, and counts the rest."""

    preprocess_concurrency = 2

    def __init__(self) -> None:
        super().__init__()
        self.preprocessed = 0
        self.released = threading.Event()
        self.preprocess_threads: set[str] = set()

    def preprocess(self, raw: Image) -> Preprocessed:
        """Look at the options."""
        self.preprocess_threads.add(threading.current_thread().name)
        if "refuse" in raw.options:
            raise ValueError(raw.options["refuse"])
        match raw.options.get("break"):
            case "exit":
                raise SystemExit(3)
            case "stop":
                raise StopIteration
            case "hang":
                self.released.wait(60)
            case str():
                raise KeyError("a secret of ours")
        self.preprocessed += 1
        return Preprocessed(raw, int(raw.options.get("cost", "1")))

    def forward_batch(self, items: Sequence[Image]) -> Sequence[Any]:
        """Break where an option says so."""
        for image in items:
            match image.options.get("forward"):
                case "refuse":
                    raise TypeError("this picture cannot be encoded")
                case "break":
                    raise RuntimeError("a secret of ours")
                case "exit":
                    raise SystemExit(3)
                case "stop":
                    raise StopIteration
                case "late":
                    raise TimeoutError("a secret of ours")
                case "nan":
                    return [self.rows(image) * np.nan for image in items]
                case "wide":
                    return [np.zeros((1, WIDTH + 1), np.float32) for _ in items]
                case "few":
                    return []
                case "flat":
                    return [np.zeros(WIDTH, np.float32) for _ in items]
                case "integers":
                    return [np.zeros((1, WIDTH), np.int64) for _ in items]
        return super().forward_batch(items)
