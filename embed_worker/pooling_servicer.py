"""PoolingService on one model: multi-vector, sparse, score, rerank, classify."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from embed_worker import answers, checks, scoring
from embed_worker.engine import Params
from embed_worker.model import Model
from embed_worker.servicer import Holder
from tensorway import logs
from tensorway.handlers import Context, Service
from tensorway.v1 import common_pb2, pooling_pb2

_POOLING = pooling_pb2.DESCRIPTOR.services_by_name["PoolingService"]


class PoolingServicer:
    """PoolingService."""

    def __init__(self, holder: Holder, max_message_bytes: int) -> None:
        self._holder = holder
        self._max_numbers = max_message_bytes // np.dtype(np.float32).itemsize

    async def TokenEmbed(self, request: pooling_pb2.TokenEmbedRequest, context: Context) -> bytes:
        """One vector for each token, as a serialised TokenEmbedResponse."""
        del context
        with self._accepted(request, "token_embed") as (model, answer):
            params = Params("token_embed", checks.dimensions(request, model.info))
            most = self._max_numbers // (params.dimensions or model.info.dimensions)
            pooled = await model.pool(request, params, "token_embed", most_tokens=most)
            return answers.token_embed_response(
                pooled.rows, pooled.offsets, usage=pooled.usage, **answer
            )

    async def SparseEmbed(
        self, request: pooling_pb2.SparseEmbedRequest, context: Context
    ) -> pooling_pb2.SparseEmbedResponse:
        """Weights of vocabulary terms."""
        del context
        with self._accepted(request, "sparse_embed") as (model, answer):
            pooled = await model.pool(request, Params(model.info.sparse_task), "sparse_embed")
            response = pooling_pb2.SparseEmbedResponse(usage=pooled.usage, **answer)
            of_tokens = model.info.sparse_task == "token_classify"
            rows = np.split(pooled.rows, pooled.offsets[1:-1])
            ids = np.split(pooled.batch.ids, pooled.batch.offsets[1:-1])
            for index, (own, tokens) in enumerate(zip(rows, ids, strict=True)):
                terms, weights = scoring.term_weights(own, tokens if of_tokens else None)
                response.embeddings.add(index=index, indices=terms, values=weights)
            return response

    async def Score(
        self, request: pooling_pb2.ScoreRequest, context: Context
    ) -> pooling_pb2.ScoreResponse:
        """How well each document answers the query."""
        del context
        with self._accepted(request, "score") as (model, answer):
            scores, usage = await self._score(model, request)
            return pooling_pb2.ScoreResponse(scores=scores, usage=usage, **answer)

    async def Rerank(
        self, request: pooling_pb2.RerankRequest, context: Context
    ) -> pooling_pb2.RerankResponse:
        """The documents that answer the query best."""
        del context
        with self._accepted(request, "score") as (model, answer):
            top_n = checks.top_n(request)
            scores, usage = await self._score(model, request)
            response = pooling_pb2.RerankResponse(usage=usage, **answer)
            for index in scoring.ranking(scores, top_n):
                text = request.documents[index] if request.return_documents else ""
                response.results.add(index=index, relevance_score=scores[index], document=text)
            return response

    async def Classify(
        self, request: pooling_pb2.ClassifyRequest, context: Context
    ) -> pooling_pb2.ClassifyResponse:
        """A score for each class."""
        del context
        with self._accepted(request, "classify") as (model, answer):
            pooled = await model.pool(request, Params("classify"), "classify")
            labels = model.info.labels
            response = pooling_pb2.ClassifyResponse(labels=labels, usage=pooled.usage, **answer)
            for index, probs in enumerate(pooled.rows.tolist()):
                label = labels[int(np.argmax(probs))]
                response.classifications.add(index=index, label=label, probs=probs)
            return response

    def service(self) -> Service:
        """The gRPC service; vectors stay bytes."""
        parse = pooling_pb2.TokenEmbedRequest.FromString
        return Service(_POOLING, self, codecs={"TokenEmbed": (parse, None)})

    @contextmanager
    def _accepted(self, request: Any, task: str) -> Iterator[tuple[Model, dict[str, Any]]]:
        """The model, and the fields that every answer has."""
        model = self._holder.model
        with model.observed(task):
            checks.check_model(request.model, model.info)
            checks.check_task(task, model.info)
            yield (
                model,
                {"model": request.model, "request_id": logs.bind_request_id(request.request_id)},
            )

    async def _score(self, model: Model, request: Any) -> tuple[list[float], common_pb2.Usage]:
        if model.info.score_type == "cross-encoder":
            pooled = await model.pool_pairs(request, "score")
            return pooled.rows[:, 0].tolist(), pooled.usage
        late = model.info.score_type == "late-interaction"
        params = Params("token_embed" if late else "embed")
        pooled = await model.pool_query(request, params, "score")
        if late:
            # Each token of the query with each of all documents: too long for the event loop.
            scores = await asyncio.to_thread(scoring.max_sim, pooled.rows, pooled.offsets)
            return scores, pooled.usage
        return scoring.cosine(pooled.rows), pooled.usage
