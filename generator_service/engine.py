"""What the service needs of an engine; the rest of it knows nothing of vllm."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tensorway.prompt import ModelShape, Prompt


class EngineDied(Exception):
    """The engine cannot answer any more; the process must end."""


@dataclass(frozen=True)
class EngineInfo:
    """The loaded model."""

    names: tuple[str, ...]
    """Its name, then its aliases."""
    root: str
    """Where it was loaded from."""
    shape: ModelShape
    max_logprobs: int
    has_tokenizer: bool
    """Whether text can be returned."""


class Candidate(NamedTuple):
    """One token that could stand in a place."""

    token_id: int
    logprob: float
    rank: int


class Piece(NamedTuple):
    """The next part of an answer."""

    token_ids: list[int]
    text: str = ""
    logprobs: list[list[Candidate]] = []  # noqa: RUF012, never changed
    finish_reason: str | None = None
    """"stop" or "length" in the last piece."""
    stop_reason: str = ""


@dataclass(frozen=True)
class Params:
    """How to generate; checked."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of vLLM's SamplingParams."""
    text: bool = False
    """Whether text is wanted."""


class Engine(Protocol):
    """A generator."""

    info: EngineInfo

    def generate(self, prompt: Prompt, params: Params) -> AsyncGenerator[Piece, None]:
        """The answer as it comes; closing the generator ends the work in the engine."""

    def check(self) -> None:
        """Raise EngineDied when the engine is dead or hangs."""

    def close(self) -> None:
        """End the engine."""
