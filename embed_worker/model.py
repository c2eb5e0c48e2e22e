"""A loaded model: from a request to rows of numbers, within the limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from opentelemetry import trace

from embed_worker import answers, checks, metrics
from embed_worker.admission import Admission, Cost
from embed_worker.engine import EngineInfo, Params, Rows, Step, Task
from embed_worker.engine_group import EngineGroup
from embed_worker.pieces import Pieces, pieces
from embed_worker.tokenizer import Batch, BatchTokenizer, Field, Offsets, TextOptions
from embed_worker.vector_cache import VectorCache
from tensorway import telemetry
from tensorway.v1 import common_pb2, embedding_pb2, model_pb2

# Texts of the start-up proof; they differ in length.
_PROOF = ("hi", "A rather longer text, so that a width that follows the length shows.")
_NORM_TOLERANCE = 1e-2


class Pooled(NamedTuple):
    """What the engine made of a request."""

    rows: Rows
    """All rows, [n, width] float32."""
    offsets: Offsets
    """Input i owns rows[offsets[i]:offsets[i + 1]]."""
    batch: Batch

    @property
    def usage(self) -> common_pb2.Usage:
        """Tokens that the request cost."""
        tokens = self.batch.tokens
        return common_pb2.Usage(prompt_tokens=tokens, total_tokens=tokens)


class Model:
    """One model in one engine process, and the permits for work in it."""

    def __init__(
        self,
        info: EngineInfo,
        engine: EngineGroup | VectorCache,
        admission: Admission,
        max_inputs: int,
    ) -> None:
        self.info = info
        self.name = info.model_names[0]
        self.tokenizer = BatchTokenizer(info)
        self._engine = engine
        self._admission = admission
        self._max_inputs = max_inputs
        metrics.show_held(self.name, admission)

    @contextmanager
    def observed(self, task: str) -> Iterator[None]:
        """Count a request, and give its work a span."""
        with metrics.observed(self.name, task), telemetry.model_span("embeddings", self.name):
            yield

    async def pool(
        self,
        request: Any,
        params: Params,
        task: str,
        *,
        patient: bool = False,
        most_tokens: int | None = None,
    ) -> Pooled:
        """Rows for the inputs of a request that has `texts` or `tokens`.

        A patient request, one of a stream, waits for room instead of being refused. One of
        more than `most_tokens` tokens raises TooLarge before the engine sees it.
        """
        kind, bulk = checks.check_inputs(request, self.info, self._max_inputs), _bulk(request)
        options = checks.text_options(request, self.info, self.tokenizer.special_tokens)
        if patient:
            await self._admission.wait_for_room(cost(request))
        with self._admission.hold(cost(request), bulk=bulk):
            if not patient and most_tokens is None and (large := self._pieces(request, options)):
                return await self._run_pieces(large, params, task, bulk=bulk)
            with telemetry.stage("tokenize"):
                batch = await self._tokenize(request, kind, options)
            checks.check_answer(batch.tokens, most_tokens)
            if patient:
                await self._admission.wait_for_room(Cost(tokens=batch.tokens))
            return await self._run(batch, params, task, FIELDS[kind], bulk=bulk)

    async def pool_query(self, request: Any, params: Params, task: str) -> Pooled:
        """Rows for a query and then its documents, each an input of its own."""
        limit = self._check_query(request, self.tokenizer.special_tokens + 1)
        texts, options = [request.query, *request.documents], TextOptions(limit=limit)
        with self._admission.hold(cost(request), bulk=_bulk(request)):
            batch = await self.tokenizer.texts(texts, options, _query_field)
            return await self._run(batch, params, task, _query_field, bulk=_bulk(request))

    async def pool_pairs(self, request: Any, task: str) -> Pooled:
        """Rows for the pairs of a query and each document, as a cross-encoder reads them."""
        limit = self._check_query(request, self.tokenizer.special_tokens + 2)
        with self._admission.hold(cost(request), bulk=_bulk(request)):
            batch = await self.tokenizer.pairs(request.query, request.documents, limit, _document)
            params = Params("classify")
            return await self._run(batch, params, task, _document, bulk=_bulk(request))

    async def prove(self) -> None:
        """Raise RuntimeError unless texts of any length give vectors of one width.

        One each, or one for each of their tokens where the model gives nothing else. A
        worker whose task was left unset once answered with every token's state.
        """
        task: Task = "embed" if "embed" in self.info.tasks else "token_embed"
        if task not in self.info.tasks:
            return
        sequences = [self._proof_ids(text) for text in _PROOF]
        batch = self.tokenizer.sequences(sequences, TextOptions(), "proof[{}]".format)
        rows, _ = await self._engine.run(batch, Params(task))
        expected = (batch.inputs if task == "embed" else batch.tokens, self.info.dimensions)
        if rows.shape != expected:
            raise RuntimeError(f"expected {list(expected)} numbers, got {list(rows.shape)}")
        norms = np.linalg.norm(rows, axis=1)
        if not np.isfinite(norms).all():
            raise RuntimeError("the model gives NaN or infinity")
        if self.info.normalized and np.abs(norms - 1).max() > _NORM_TOLERANCE:
            raise RuntimeError(f"expected vectors of length 1, got {norms.tolist()}")

    async def _run(
        self, batch: Batch, params: Params, task: str, field: Field, *, bulk: bool
    ) -> Pooled:
        with self._admission.hold(Cost(tokens=batch.tokens), bulk=bulk), telemetry.stage("engine"):
            rows, offsets = await self._engine.run(batch, params, bulk=bulk)
        return self._pooled(rows, offsets, batch, task, field)

    def _pieces(self, request: Any, options: TextOptions) -> Pieces | None:
        # Pieces of one request would not know of each other's texts in the cache.
        cached = isinstance(self._engine, VectorCache)
        large = None if cached else pieces(request.texts.texts, self.tokenizer, options)
        ample = large and self._admission.has_ample_room(Cost(tokens=large.most_tokens))
        return large if ample else None

    async def _run_pieces(self, large: Pieces, params: Params, task: str, *, bulk: bool) -> Pooled:
        field = FIELDS["texts"]
        with self._admission.hold(Cost(tokens=large.most_tokens), bulk=bulk) as permit:

            def counted(tokens: int) -> None:
                self._admission.shrink(permit, Cost(tokens=tokens))

            with telemetry.stage("tokenize"):
                first = await large.tokenize(large.cuts[0], field)
            with telemetry.stage("engine"):
                pooled = await large.run(first, self._engine, params, field, counted, bulk=bulk)
        return self._pooled(*pooled, task, field)

    def _pooled(
        self, rows: Rows, offsets: Offsets, batch: Batch, task: str, field: Field
    ) -> Pooled:
        answers.check_finite(rows, offsets, field)
        metrics.INPUTS.labels(self.name, task).inc(batch.inputs)
        metrics.TOKENS.labels(self.name, task).inc(batch.tokens)
        telemetry.set_usage(trace.get_current_span(), batch.tokens)
        return Pooled(rows, offsets, batch)

    def _check_query(self, request: Any, least_limit: int) -> int | None:
        if not request.query:
            raise checks.invalid("query", "expected a text, got an empty string")
        checks.check_texts(request.documents, "documents", self._max_inputs)
        return checks.truncation(request, self.info, least_limit)

    def stepped(self, step: Step, seconds: float) -> None:
        """Learn from an engine step."""
        self._admission.worked(step.tokens, seconds)
        metrics.STEP_INPUTS.labels(self.name).observe(step.inputs)
        metrics.STEP_TOKENS.labels(self.name).observe(step.tokens)
        for result in step.results:
            metrics.QUEUE_SECONDS.labels(self.name).observe(result.queued)

    def load(self) -> model_pb2.WorkerLoad:
        """Work in the model now."""
        held = self._admission.held
        return model_pb2.WorkerLoad(requests=held.requests, inputs=held.inputs, tokens=held.tokens)

    async def _tokenize(self, request: Any, kind: str, options: TextOptions) -> Batch:
        if kind == "texts":
            return await self.tokenizer.texts(request.texts.texts, options, FIELDS[kind])
        sequences = [sequence.ids for sequence in request.tokens.sequences]
        return self.tokenizer.sequences(sequences, options, FIELDS[kind])

    def _proof_ids(self, text: str) -> list[int]:
        if not self.info.tokenizer:
            return [index % self.info.vocab_size for index in range(len(text))]
        options = TextOptions(limit=self.info.max_model_len)
        return list(self.tokenizer.encode([text], options, "proof[{}]".format).ids.tolist())


def cost(request: Any) -> Cost:
    """What a request takes before its tokens are known."""
    if hasattr(request, "documents"):
        inputs = len(request.documents)
    else:
        inputs = len(request.texts.texts) or len(request.tokens.sequences)
    return Cost(requests=1, inputs=inputs, bytes=request.ByteSize())


FIELDS: dict[str, Field] = {
    "texts": "texts.texts[{}]".format,
    "tokens": "tokens.sequences[{}]".format,
}
_document: Field = "documents[{}]".format


def _query_field(index: int) -> str:
    return _document(index - 1) if index else "query"


def _bulk(request: Any) -> bool:
    if request.priority not in embedding_pb2.Priority.values():
        raise checks.invalid("priority", f"expected a known priority, got {request.priority}")
    return bool(request.priority == embedding_pb2.PRIORITY_BULK)
