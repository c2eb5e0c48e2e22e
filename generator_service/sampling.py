"""Sampling parameters of a request, checked before the engine sees them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from generator_service.engine import EngineInfo, Params
from tensorway.errors import FailedPrecondition, InvalidArgument
from tensorway.v1 import generator_pb2

_MAX_STOPS = 16
_MAX_STOP_LENGTH = 1024
_MAX_INT = 2**31 - 1


class Range(NamedTuple):
    """Values that a parameter may have."""

    low: float
    high: float
    open: bool = False
    """Whether `low` itself is not allowed."""

    def holds(self, value: float) -> bool:
        """Whether a value is in the range; NaN never is."""
        return (self.low < value if self.open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.open else 'at least'} {self.low:g} and at most {self.high:g}"


RANGES = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, open=True),
    "top_k": Range(-1, _MAX_INT),
    "min_p": Range(0, 1),
    "max_tokens": Range(1, _MAX_INT),
    "min_tokens": Range(0, _MAX_INT),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 100, open=True),
}


def read(params: generator_pb2.SamplingParams, text: bool, info: EngineInfo) -> Params:
    """The parameters as vLLM names them; raises InvalidArgument naming the field."""
    given = {field.name: _plain(value) for field, value in params.ListFields()}
    for name, allowed in RANGES.items():
        if name in given and not allowed.holds(given[name]):
            _refuse(name, allowed, given[name])
    longest = given.get("max_tokens", 16)
    if given.get("min_tokens", 0) > longest:
        _refuse("min_tokens", f"at most max_tokens {longest}", given["min_tokens"])
    if given.get("logprobs", 0) > info.max_logprobs:
        _refuse("logprobs", f"at most {info.max_logprobs}", given["logprobs"])
    _check_stops(given, text, info)
    if text and not info.has_tokenizer:
        raise FailedPrecondition("return_text: this generator runs without a tokenizer")
    return Params(given, text)


def _check_stops(given: dict[str, Any], text: bool, info: EngineInfo) -> None:
    if "stop" in given and not text:
        _refuse("stop", "return_text with it, since texts end the generation", "none")
    for name in ("stop", "stop_token_ids"):
        if len(given.get(name, ())) > _MAX_STOPS:
            _refuse(name, f"at most {_MAX_STOPS} values", len(given[name]))
    for index, stop in enumerate(given.get("stop", ())):
        if not 1 <= len(stop) <= _MAX_STOP_LENGTH:
            _refuse(f"stop[{index}]", f"1 to {_MAX_STOP_LENGTH} characters", len(stop))
    for index, token in enumerate(given.get("stop_token_ids", ())):
        if token >= info.shape.vocab_size:
            _refuse(f"stop_token_ids[{index}]", f"an id below {info.shape.vocab_size}", token)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # A float field is 32 bits wide: 0.1 must not become 0.10000000149.
        return float(f"{value:.7g}") if math.isfinite(value) else value
    return value if isinstance(value, bool | int) else list(value)


def _refuse(name: str, expected: object, got: object) -> None:
    field = f"sampling_params.{name}"
    raise InvalidArgument(f"{field}: expected {expected}, got {got}", field=field)
