"""What is checked of a request before anything is done for it; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from embed_worker.engine import EngineInfo
from embed_worker.tokenizer import TextOptions
from tensorway.errors import FailedPrecondition, InvalidArgument, NotFound, TooLarge
from tensorway.v1 import tensor_pb2


def invalid(field: str, message: str) -> InvalidArgument:
    """An error about one field of the request."""
    return InvalidArgument(f"{field}: {message}", field=field)


def check_model(model: str, info: EngineInfo) -> None:
    """Raise NotFound unless this worker serves the model under that name."""
    if not model:
        raise invalid("model", "expected a name, got none")
    if model not in info.model_names:
        known = ", ".join(info.model_names)
        raise NotFound(f"model: {model!r} is not served here; known: {known}", field="model")


def check_inputs(request: Any, info: EngineInfo, max_inputs: int) -> str:
    """Check the input itself; returns its kind, "texts" or "tokens"."""
    kind: str | None = request.WhichOneof("input")
    if kind == "texts":
        check_texts(request.texts.texts, "texts.texts", max_inputs)
    elif kind == "tokens":
        _check_sequences([s.ids for s in request.tokens.sequences], info, max_inputs)
    else:
        raise invalid("input", "expected texts or tokens, got neither")
    return kind


def check_texts(texts: Sequence[str], field: str, max_inputs: int) -> None:
    """Raise for no texts, too many, or an empty one."""
    _check_count(len(texts), field, max_inputs)
    if not all(texts):
        index = next(i for i, text in enumerate(texts) if not text)
        raise invalid(f"{field}[{index}]", "expected a text, got an empty string")


def check_answer(tokens: int, most: int | None) -> None:
    """Raise TooLarge when the vectors of so many tokens are more than a message holds."""
    if most is not None and tokens > most:
        expected = f"expected at most {most} tokens in a request, got {tokens}"
        raise TooLarge(f"{expected}: their vectors would not fit an answer (--max-message-mib)")


def top_n(request: Any) -> int | None:
    """Most results to return, None for all."""
    if not request.HasField("top_n"):
        return None
    if request.top_n < 1:
        raise invalid("top_n", f"expected at least 1, got {request.top_n}")
    return int(request.top_n)


@contextmanager
def unique_id(request_id: str, pending: set[str]) -> Iterator[None]:
    """Hold an id among the ones in flight on a stream; raises for none, or one in use."""
    if not request_id:
        raise invalid("request_id", "expected an id on every request of a stream, got none")
    if request_id in pending:
        raise invalid("request_id", f"{request_id!r} is already in flight on this stream")
    pending.add(request_id)
    try:
        yield
    finally:
        pending.discard(request_id)


def text_options(request: Any, info: EngineInfo, special_tokens: int) -> TextOptions:
    """How the request wants its inputs turned into token ids."""
    special = request.add_special_tokens if _given(request, "add_special_tokens") else True
    added = special_tokens if special and request.WhichOneof("input") == "texts" else 0
    return TextOptions(
        special=special,
        limit=truncation(request, info, added + 1),
        prefix=_prefix(request, info),
    )


def truncation(request: Any, info: EngineInfo, least: int) -> int | None:
    """The length in tokens to cut inputs to, or None when nothing may be cut."""
    if not request.HasField("truncate_prompt_tokens"):
        return None
    limit: int = request.truncate_prompt_tokens
    if limit == -1:
        return info.max_model_len
    if not least <= limit <= info.max_model_len:
        expected = f"expected -1 or {least} to {info.max_model_len}, got {limit}"
        raise invalid("truncate_prompt_tokens", expected)
    return limit


def dimensions(request: Any, info: EngineInfo) -> int | None:
    """Dimensions to ask the engine for, None for the native width.

    vLLM clamps values above the native width silently, and refuses the native width
    itself on a model without Matryoshka support: both are decided here.
    """
    if not request.HasField("dimensions") or request.dimensions == info.dimensions:
        return None
    value: int = request.dimensions
    if not 1 <= value <= info.dimensions:
        raise invalid("dimensions", f"expected 1 to {info.dimensions}, got {value}")
    if not info.is_matryoshka:
        native = f"expected {info.dimensions}, got {value}"
        raise invalid("dimensions", f"{native}: the model has no Matryoshka support")
    if info.matryoshka_dimensions and value not in info.matryoshka_dimensions:
        one_of = ", ".join(map(str, (*info.matryoshka_dimensions, info.dimensions)))
        raise invalid("dimensions", f"expected one of {one_of}, got {value}")
    return value


def element_type(request: Any) -> int:
    """The element type of the answer; unspecified is float32."""
    if request.element_type not in tensor_pb2.ElementType.values():
        raise invalid("element_type", f"expected a known type, got {request.element_type}")
    return request.element_type or tensor_pb2.ELEMENT_TYPE_FLOAT32


def check_task(task: str, info: EngineInfo) -> None:
    """Raise FailedPrecondition unless the model supports the task."""
    if task not in info.tasks:
        offered = ", ".join(info.tasks)
        message = f"model: {info.model_names[0]!r} does not support {task}; it supports {offered}"
        raise FailedPrecondition(message)


def _given(request: Any, field: str) -> bool:
    """Whether a request that may have the field has it."""
    return field in request.DESCRIPTOR.fields_by_name and request.HasField(field)


def _prefix(request: Any, info: EngineInfo) -> str:
    name: str = getattr(request, "prompt_name", "")
    if not name:
        return ""
    if request.WhichOneof("input") != "texts":
        raise invalid("prompt_name", "expected none with token ids")
    if name not in info.prompts:
        known = ", ".join(sorted(info.prompts)) or "none"
        raise invalid("prompt_name", f"{name!r} is not a prompt of this model; known: {known}")
    return info.prompts[name]


def _check_sequences(sequences: list[Any], info: EngineInfo, max_inputs: int) -> None:
    field = "tokens.sequences"
    _check_count(len(sequences), field, max_inputs)
    for index, ids in enumerate(sequences):
        if not ids:
            raise invalid(f"{field}[{index}].ids", "expected token ids, got none")
        if max(ids) >= info.vocab_size:
            values = np.asarray(ids, np.int64)
            position = int(np.argmax(values >= info.vocab_size))
            expected = f"expected 0 to {info.vocab_size - 1}, got {values[position]}"
            raise invalid(f"{field}[{index}].ids[{position}]", expected)


def _check_count(count: int, field: str, max_inputs: int) -> None:
    if not count:
        raise invalid(field, "expected at least one input, got none")
    if count > max_inputs:
        expected = f"expected at most {max_inputs} inputs (--max-inputs), got {count}"
        raise TooLarge(f"{field}: {expected}", field=field)
