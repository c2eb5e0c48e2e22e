"""The API's operations, each declared once: for the routes and for the description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from . import answers, chat, generated, schema, token_ids
from .completions import Completions, Images
from .embeddings import Embeddings
from .models import Models
from .options import RestOptions
from .pooling import Pooling
from .prompts import load
from .scoring import Scoring
from .upstream import Upstream

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    """One route of the API; its handler's docstring is what people read."""

    path: str
    handler: Handler
    answer: type
    body: type | None = None

    @property
    def method(self) -> str:
        """The HTTP method: operations with a body are posted."""
        return "POST" if self.body else "GET"

    @property
    def summary(self) -> str:
        """What it answers with."""
        return self.handler.__doc__ or ""


def operations(upstream: Upstream, rest: RestOptions) -> tuple[Operation, ...]:
    """All of them."""
    strict = rest.strict
    images = Images(rest.image_encoder, rest.image_token)
    completions = Completions(upstream, load(rest.generator), images, strict=strict)
    to_text = token_ids.load(rest.token_ids)
    embeddings = Embeddings(upstream, to_text, strict=strict)
    scoring = Scoring(upstream, strict=strict)
    pooling = Pooling(upstream, to_text, strict=strict)
    models = Models(upstream)
    return (
        Operation(
            "/v1/embeddings", embeddings.create, answers.EmbeddingList, schema.EmbeddingRequest
        ),
        Operation("/v1/rerank", scoring.rerank, answers.Ranking, schema.RerankRequest),
        Operation("/v1/score", scoring.score, answers.ScoreList, schema.ScoreRequest),
        Operation(
            "/v1/classify", pooling.classify, answers.ClassificationList, schema.ClassifyRequest
        ),
        Operation("/v1/pooling", pooling.pool, answers.PooledList, schema.PoolingRequest),
        Operation("/v1/chat/completions", completions.chat, generated.Chat, chat.ChatRequest),
        Operation(
            "/v1/completions", completions.complete, generated.Completion, chat.CompletionRequest
        ),
        Operation("/v1/models", models.list, answers.ModelList),
        Operation("/v1/models/{model:path}", models.get, answers.Model),
    )
