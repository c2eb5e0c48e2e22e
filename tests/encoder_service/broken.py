"""Encoders that are wrong, or slow, from the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorway.encoder import Preprocessed
from tests.encoder_service.backends import MeanEncoder


class Forgotten(MeanEncoder):
    """Overrides preprocess, and forgets to give it threads."""

    def preprocess(self, raw: Any) -> Preprocessed:
        """Never called."""
        return Preprocessed(raw)


class Refusing(MeanEncoder):
    """Refuses its model."""

    def build(self, model_id: str) -> None:
        """Say why."""
        raise ValueError(f"not this one: {model_id!r}")


class Slow(MeanEncoder):
    """Loads until a file is there."""

    def build(self, model_id: str) -> None:
        """Wait for the file."""
        _wait(model_id)


class Hung(MeanEncoder):
    """Never comes back but for the first picture."""

    def forward_batch(self, items: Sequence[Any]) -> Sequence[Any]:
        """Wait for nobody, once it is proven."""
        if self.batches:
            threading.Event().wait()
        return super().forward_batch(items)


class Stuck(MeanEncoder):
    """Loads for ever."""

    def build(self, model_id: str) -> None:
        """Wait for nobody."""
        threading.Event().wait()


class Late(MeanEncoder):
    """Encodes all but the first picture once a file is there."""

    def forward_batch(self, items: Sequence[Any]) -> Sequence[Any]:
        """Wait for the file, once it is proven."""
        if self.batches:
            _wait(self.model_id)
        return super().forward_batch(items)


def _wait(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)
