"""Generated tokens in OpenAI's shapes: a whole answer, or server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import grpc
from starlette.responses import Response

from tensorway.v1 import common_pb2, generator_pb2

from .errors import to_body, to_domain
from .logprobs import Places
from .render import small, to_json

_REASONS = {
    generator_pb2.FINISH_REASON_UNSPECIFIED: None,
    generator_pb2.FINISH_REASON_STOP: "stop",
    generator_pb2.FINISH_REASON_LENGTH: "length",
}


def _none(_places: Places) -> None:
    """No log probabilities, since none were asked for."""


@dataclass(frozen=True)
class Shape:
    """How one of the two routes names things."""

    prefix: str
    whole: str
    chunk: str
    text: Callable[[str], dict[str, Any]]
    """A whole text, as the choice has it."""
    delta: Callable[[str], dict[str, Any]]
    """A piece of text, as the choice of a chunk has it."""
    opening: dict[str, str]
    """What only the first chunk's delta has besides."""
    logprobs: Callable[[Places], Any] = _none
    """Log probabilities of the next tokens of one answer."""

    def having(self, logprobs: Callable[[Places], Any]) -> Self:
        """The same with log probabilities."""
        return replace(self, logprobs=logprobs)


CHAT = Shape(
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text: {"delta": {"content": text}},
    {"role": "assistant"},
)
TEXT = Shape(
    "cmpl-",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda text: {"text": text},
    {},
)


class Writer:
    """Writes one answer."""

    def __init__(self, shape: Shape, request_id: str, model: str, created: int) -> None:
        self._shape = shape
        self._head = {"id": shape.prefix + request_id, "created": created, "model": model}

    def whole(self, parts: Sequence[generator_pb2.GenerateResponse]) -> Response:
        """The answer once all of it is there."""
        last = parts[-1]
        text = self._shape.text("".join(part.text for part in parts))
        logprobs = self._shape.logprobs([place for part in parts for place in part.logprobs])
        choice = {"index": 0, **text, "logprobs": logprobs, **_finish(last)}
        answer = {"object": self._shape.whole, "choices": [choice], "usage": _usage(last.usage)}
        return small({**self._head, **answer})

    async def events(
        self, parts: AsyncIterator[generator_pb2.GenerateResponse], *, with_usage: bool
    ) -> AsyncIterator[bytes]:
        """The answer as it comes; an error on the way is its last event."""
        usage, opening = common_pb2.Usage(), self._shape.opening
        try:
            async for part in parts:
                logprobs = self._shape.logprobs(part.logprobs) if part.logprobs else None
                choice = {"index": 0, **self._shape.delta(part.text), "logprobs": logprobs}
                if opening:
                    choice["delta"], opening = {**opening, **choice["delta"]}, {}
                yield self._event([{**choice, **_finish(part)}])
                usage = part.usage
        except grpc.aio.AioRpcError as error:
            yield _data(to_json(to_body(to_domain(error))))
            return
        if with_usage:
            yield self._event([], usage=_usage(usage))
        yield _data(b"[DONE]")

    def _event(self, choices: list[dict[str, Any]], **rest: Any) -> bytes:
        body = {**self._head, "object": self._shape.chunk, "choices": choices, **rest}
        return _data(to_json(body))


def _finish(part: generator_pb2.GenerateResponse) -> dict[str, str | None]:
    return {"finish_reason": _REASONS[part.finish_reason]}


def _usage(usage: common_pb2.Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _data(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
