"""Shapes of generated answers, as the API's description shows them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GenerationUsage(Struct):
    """Tokens that a generation cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(Struct):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Struct):
    """The answer, and why it ended."""

    index: int
    message: AssistantMessage
    logprobs: None
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
    logprobs: None
    finish_reason: Literal["stop", "length"] | None


class Completion(Struct):
    """Answer of /v1/completions; with `stream`, server-sent events of its pieces."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: GenerationUsage
