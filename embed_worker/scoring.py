"""Scores of documents for a query, from what the model gives; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embed_worker.engine import Ids, Rows
from embed_worker.tokenizer import Offsets


def cosine(rows: Rows) -> list[float]:
    """Cosine of the first vector to each of the others; rows are [1 + documents, width]."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    scores: list[float] = (unit[1:] @ unit[0]).tolist()
    return scores


def max_sim(rows: Rows, offsets: Offsets) -> list[float]:
    """Late interaction: for each token of the query its best token of the document, summed.

    The first input is the query. Khattab and Zaharia, "ColBERT", 2020, equation 3.
    """
    query, *documents = np.split(rows, offsets[1:-1])
    return [float((query @ document.T).max(axis=1).sum()) for document in documents]


def ranking(scores: Sequence[float], top_n: int | None) -> list[int]:
    """Indexes of the best scores, best first, equal ones in input order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return order[:top_n]


def term_weights(rows: Rows, ids: Ids | None) -> tuple[list[int], list[float]]:
    """Terms above 0, ascending, and their weights.

    Without ids, rows is [1, vocab_size]. With the input's ids, rows is [tokens, 1], and of
    a term that occurs more than once the largest weight counts.
    """
    if ids is None:
        terms = np.flatnonzero(rows[0] > 0)
        return terms.tolist(), rows[0][terms].tolist()
    terms, places = np.unique(ids, return_inverse=True)
    weights = np.zeros(len(terms), np.float32)
    np.maximum.at(weights, places, rows[:, 0])
    return terms[weights > 0].tolist(), weights[weights > 0].tolist()
