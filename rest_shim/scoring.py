"""POST /v1/rerank and /v1/score, in vLLM's shapes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import numpy as np
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from tensorway.errors import InvalidArgument, TensorwayError, TooLarge
from tensorway.v1 import pooling_pb2

from .errors import to_domain
from .render import small, usage
from .schema import RerankRequest, ScoreRequest, decode, decoder
from .upstream import Upstream

# As many pairs as a worker takes inputs.
_MOST = 2048
# Pairs of one score request that are asked for at once.
_PAIRS = 16
_PLACE = re.compile(r"^(query|documents)(?:\[(\d+)\])?")


class Scoring:
    """The handlers; ``strict`` refuses fields that the API does not know."""

    def __init__(self, upstream: Upstream, *, strict: bool) -> None:
        self._upstream = upstream
        self._rerank = decoder(RerankRequest, strict=strict)
        self._score = decoder(ScoreRequest, strict=strict)

    async def rerank(self, request: Request) -> Response:
        """The documents that answer a query best, best first."""
        body = decode(self._rerank, await request.body())
        message = pooling_pb2.RerankRequest(
            model=body.model,
            query=body.query,
            documents=[d if isinstance(d, str) else d.text for d in body.documents],
            top_n=body.top_n or None,
            return_documents=body.return_documents is not False,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        answer = await self._upstream.call("Rerank", message, request.headers)
        results = [_result(result, message.return_documents) for result in answer.results]
        rest = {"id": answer.request_id, "model": answer.model, "usage": usage(answer)}
        return small({**rest, "results": results})

    async def score(self, request: Request) -> Response:
        """How well texts fit together, in input order."""
        body = decode(self._score, await request.body())
        answers = await self._score_all(body, request.headers)
        scores = [np.float32(score) for answer in answers for score in answer.scores]
        cost = sum(answer.usage.prompt_tokens for answer in answers)
        return small(
            {
                "object": "list",
                "data": [
                    {"index": index, "object": "score", "score": score}
                    for index, score in enumerate(scores)
                ],
                "model": body.model,
                "usage": {"prompt_tokens": cost, "total_tokens": cost},
            }
        )

    async def _score_all(self, body: ScoreRequest, headers: Headers) -> list[Any]:
        slots, messages = asyncio.Semaphore(_PAIRS), to_messages(body)

        async def one(pair: int, message: pooling_pb2.ScoreRequest) -> Any:
            async with slots:
                try:
                    return await self._upstream.call("Score", message, headers)
                except grpc.aio.AioRpcError as error:
                    raise as_written(to_domain(error), body, pair) from None

        tasks = [asyncio.ensure_future(one(*numbered)) for numbered in enumerate(messages)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


def to_messages(body: ScoreRequest) -> list[pooling_pb2.ScoreRequest]:
    """One request for one text with all others, or one for each pair of two lists."""
    first = _texts(body.text_1, body.queries, "text_1")
    second = _texts(body.text_2, body.documents, "text_2")
    if len(first) == 1:
        pairs = [(first[0], second)]
    elif len(first) == len(second) > _MOST:
        expected = f"text_1: expected at most {_MOST} pairs, got {len(first)}"
        raise TooLarge(expected, field="text_1")
    elif len(first) == len(second):
        pairs = [(query, [document]) for query, document in zip(first, second, strict=True)]
    else:
        expected = f"text_1: expected 1 text, or as many as in text_2 ({len(second)})"
        raise InvalidArgument(f"{expected}, got {len(first)}", field="text_1")
    return [
        pooling_pb2.ScoreRequest(
            model=body.model,
            query=query,
            documents=documents,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        for query, documents in pairs
    ]


def as_written(error: TensorwayError, body: ScoreRequest, pair: int) -> TensorwayError:
    """The error of a pair, or of all, with the field and index that the caller wrote."""
    first = "queries" if body.text_1 is None else "text_1"
    second = "documents" if body.text_2 is None else "text_2"
    queries = getattr(body, first)

    def place(found: re.Match[str]) -> str:
        if found[1] == "documents":
            return second if found[2] is None else f"{second}[{pair + int(found[2])}]"
        return first if isinstance(queries, str) else f"{first}[{pair}]"

    error.field, error.message = (_PLACE.sub(place, t) for t in (error.field, error.message))
    return error


def _texts(given: str | list[str] | None, other: str | list[str] | None, field: str) -> list[str]:
    texts = other if given is None else given
    if texts is None:
        raise InvalidArgument(f"{field}: expected a text or a list of texts, got none", field=field)
    return [texts] if isinstance(texts, str) else texts


def _result(result: pooling_pb2.RerankResult, with_document: bool) -> dict[str, Any]:
    shown = {"index": result.index, "relevance_score": np.float32(result.relevance_score)}
    return {**shown, "document": {"text": result.document}} if with_document else shown
