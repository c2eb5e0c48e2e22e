"""The vectors that every system must give, by a plain transformers model in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.clients import Vectors
from bench.gpu import cosines, make_texts

_STEP = 64


class Reference:
    """Vectors of the texts of a seed, computed once."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        _check_mean_pooling(Path(model))
        self._torch = torch
        self._model = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._known: dict[tuple[int, int, int], Vectors] = {}

    def vectors(self, batch: int, words: int, seed: int) -> Vectors:
        """What the texts of a job should become, [batch, width]."""
        key = (batch, words, seed)
        if key not in self._known:
            texts = make_texts(*key)
            steps = (texts[at : at + _STEP] for at in range(0, batch, _STEP))
            self._known[key] = np.concatenate([self._embed(step) for step in steps])
        return self._known[key]

    def least_cosine(self, given: Vectors, batch: int, words: int, seed: int) -> float:
        """How near the worst of the given vectors is to what it should be."""
        return float(cosines(given, self.vectors(batch, words, seed)).min())

    def _embed(self, texts: list[str]) -> Vectors:
        given = self._tokenizer(texts, padding=True, return_tensors="pt")
        with self._torch.inference_mode():
            states = self._model(**given).last_hidden_state
        mask = given["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        return np.asarray(means.numpy(), np.float32)


def _check_mean_pooling(model: Path) -> None:
    found = json.loads((model / "1_Pooling" / "config.json").read_text())
    if not found.get("pooling_mode_mean_tokens"):
        raise ValueError(f"{model}: the reference only knows mean pooling, got {found}")
