"""Encoders that are wrong, or slow, from the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
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
    """Takes its time to load."""

    def build(self, model_id: str) -> None:
        """Sleep."""
        time.sleep(2)


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
    """Takes its time for all but the first picture."""

    def forward_batch(self, items: Sequence[Any]) -> Sequence[Any]:
        """Sleep, once it is proven."""
        time.sleep(1 if self.batches else 0)
        return super().forward_batch(items)
