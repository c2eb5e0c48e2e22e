"""The contract of an application's own encoder: one class to write.

>>> class MyEncoder(VisionEncoderBackend):
...     image_token_id = 49190
...
...     def build(self, model_id):
...         self.net = load(model_id)
...
...     def forward_batch(self, items):
...         return [self.net(image.pixels) for image in items]

``ValueError`` and ``TypeError`` out of ``preprocess`` and ``forward_batch`` are the caller's
fault, and the caller reads the message. Every other error is ours; it stays in the log.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from tensorway.handoff.elements import ELEMENT_TYPES, Rows
from tensorway.images import Image


class Preprocessed(NamedTuple):
    """An image, ready for the encoder."""

    item: Any
    """What ``forward_batch`` gets."""
    cost: int = 1
    """What it takes of ``max_batch_cost``: images, tiles, patches, as the backend counts."""


class VisionEncoderBackend(ABC):
    """An encoder that an application owns.

    ``build``, ``forward_batch`` and ``close`` run on one thread, which nothing else uses, so
    that they need no locks. ``preprocess`` runs on other threads, several at once.
    """

    image_token_id: int
    """The token that stands for one image in a prompt; known after ``build`` at the latest."""
    max_batch_cost: int = 16
    """Most cost in one call of ``forward_batch``."""
    preprocess_concurrency: int = 0
    """Threads for ``preprocess``; 0: there is no such phase, and items are plain images."""
    revision: str = ""
    """Revision of the weights; part of what results and cache keys say."""
    preprocessing: str = ""
    """What is done to images before the encoder, with its settings; part of the same."""

    @abstractmethod
    def build(self, model_id: str) -> None:
        """Load the encoder; called once, before everything else."""

    def preprocess(self, raw: Image) -> Preprocessed:
        """Make an image ready for the encoder."""
        return Preprocessed(raw)

    @abstractmethod
    def forward_batch(self, items: Sequence[Any]) -> Sequence[Any]:
        """One tensor for each item, in order, on the CPU: [rows, hidden size]."""

    def close(self) -> None:  # noqa: B027, most backends have nothing to give back
        """Give back what ``build`` took; called once, last."""


def load_backend(path: str) -> VisionEncoderBackend:
    """The backend named ``package.module:Class``; raises ValueError saying what is wrong."""
    module, _, name = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"backend: expected package.module:Class, got {path!r}: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, VisionEncoderBackend)):
        raise ValueError(f"backend: expected a VisionEncoderBackend, got {path!r}")  # noqa: TRY004
    backend = kind()
    check_backend(backend)
    return backend


def check_backend(backend: VisionEncoderBackend) -> None:
    """Raise ValueError for settings that contradict each other."""
    name = type(backend).__name__
    if backend.preprocess_concurrency < 0:
        raise ValueError(f"{name}.preprocess_concurrency: expected at least 0")
    if backend.max_batch_cost < 1:
        raise ValueError(f"{name}.max_batch_cost: expected at least 1")
    overridden = type(backend).preprocess is not VisionEncoderBackend.preprocess
    if overridden and backend.preprocess_concurrency == 0:
        raise ValueError(
            f"{name}.preprocess would never be called: preprocess_concurrency is 0; "
            "set it to the number of threads"
        )


def to_rows(artifact: Any) -> Rows:
    """Our own copy of a backend's tensor (NumPy, torch on the CPU, anything array-like)."""
    rows = np.array(_torch_array(artifact), order="C")
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.name not in ELEMENT_TYPES:
        raise RuntimeError(
            f"expected [rows, hidden size] of {', '.join(ELEMENT_TYPES)}, "
            f"got {list(rows.shape)} of {rows.dtype.name}"
        )
    rows.flags.writeable = False
    return rows


def _torch_array(artifact: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(artifact, torch.Tensor):
        return artifact
    tensor = cast("Any", artifact).detach()
    if tensor.dtype is torch.bfloat16:
        # NumPy has no such type of its own, so torch cannot convert to it.
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
