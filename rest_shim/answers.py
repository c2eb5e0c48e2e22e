"""Shapes of answers, as the API's description shows them; tests hold the answers to them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Usage(Struct):
    """Tokens that a request cost, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct):
    """The vector of one input: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct):
    """Answer of /v1/embeddings, in input order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class RankedDocument(Struct):
    """Text of a document."""

    text: str


class RankedResult(Struct, omit_defaults=True):
    """One document of a ranking; ``index`` is its place in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class Ranking(Struct):
    """Answer of /v1/rerank, best first."""

    id: str
    model: str
    results: list[RankedResult]
    usage: Usage


class Score(Struct):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(Struct):
    """Answer of /v1/score, in input order."""

    object: Literal["list"]
    data: list[Score]
    model: str
    usage: Usage


class Classification(Struct):
    """The likeliest class of one input, and the score of each class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(Struct):
    """Answer of /v1/classify, in input order."""

    object: Literal["list"]
    data: list[Classification]
    model: str
    usage: Usage


class Terms(Struct):
    """Token ids of terms, and their weights."""

    indices: list[int]
    values: list[float]


class Pooled(Struct):
    """One vector for each token of an input, as numbers or base64; or its terms."""

    index: int
    object: Literal["pooling"]
    data: list[list[float]] | str | Terms


class PooledList(Struct):
    """Answer of /v1/pooling, in input order."""

    object: Literal["list"]
    data: list[Pooled]
    model: str
    usage: Usage


class Model(Struct):
    """A name that may be asked for; an alias has the model's own name as its parent."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    dimensions: int
    tasks: list[str]
    live_workers: int


class ModelList(Struct):
    """Answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class ErrorDetail(Struct):
    """What went wrong; ``param`` is the field it is in, ``code`` says it to a program."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str


class Error(Struct):
    """Every answer whose status is not 2xx."""

    error: ErrorDetail
