"""Shapes of generated answers, as the API's description shows them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GenerationUsage(Struct):
    """Tokens that a generation cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Token(Struct):
    """A token, its text, the bytes of that, and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(Token, kw_only=True):
    """A token of the answer, and those that were the likeliest in its place."""

    top_logprobs: list[Token]


class ChatLogprobs(Struct):
    """Log probabilities of a chat's tokens."""

    content: list[ChosenToken]
    refusal: None


class TextLogprobs(Struct):
    """Log probabilities of a completion's tokens, and where in the text they begin."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(Struct):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Struct):
    """The answer, and why it ended."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Chat(Struct):
    """Answer of /v1/chat/completions; with `stream`, server-sent events of its pieces."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: GenerationUsage


class CompletionChoice(Struct):
    """The text, and why it ended."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Struct):
    """Answer of /v1/completions; with `stream`, server-sent events of its pieces."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: GenerationUsage
