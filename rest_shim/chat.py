"""Bodies of /v1/chat/completions and /v1/completions, and what they ask of a generator."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec

from tensorway.errors import FailedPrecondition, InvalidArgument
from tensorway.v1 import generator_pb2, handoff_pb2

from .render import to_json
from .schema import Model, User

NotOffered = Annotated[
    msgspec.Raw, msgspec.Meta(description="Not offered; refused, unless it asks for nothing.")
]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

# OpenAI's limit.
_TOP = 20


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """What both bodies share; names and meanings are OpenAI's and vLLM's."""

    model: Model
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: float | None = None
    min_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    user: User = msgspec.field(default_factory=msgspec.Raw)
    n: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    logit_bias: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    structured_outputs: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    prompt_logprobs: NotOffered = msgspec.field(default_factory=msgspec.Raw)


class TextPart(msgspec.Struct, tag="text"):
    """A piece of text in a message."""

    text: str


class ImageUrl(msgspec.Struct):
    """Where an image is: a `data:` URL, or one that the encoder service may fetch."""

    url: str


class ImagePart(msgspec.Struct, tag="image_url"):
    """An image in a message."""

    image_url: ImageUrl


class Message(msgspec.Struct):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None


class ChatRequest(Generation, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=_TOP)] | None = None
    tools: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    functions: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    response_format: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    modalities: NotOffered = msgspec.field(default_factory=msgspec.Raw)


class CompletionRequest(Generation, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[str | int]
    logprobs: Count | None = None
    echo: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    suffix: NotOffered = msgspec.field(default_factory=msgspec.Raw)
    best_of: NotOffered = msgspec.field(default_factory=msgspec.Raw)


# Fields that would change the answer, with what asks for nothing: ignored, they would make
# it look as if it were what was asked for.
_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "prompt_logprobs": (0, False),
    "echo": (False,),
    "suffix": ("",),
}
# Bytes of a value that may ask for nothing.
_SHORT = 64
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos"),
    *("seed", "presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def check(body: Generation) -> None:
    """Raise InvalidArgument for what is not offered."""
    for field, harmless in _NOT_OFFERED.items():
        if not _asks_for_nothing(bytes(getattr(body, field, b"")), harmless):
            expected = "".join(f"{to_json(one).decode()} or " for one in harmless[:1])
            raise InvalidArgument(
                f"{field}: expected {expected}none, which is all that is offered", field=field
            )


def _asks_for_nothing(value: bytes, harmless: tuple[Any, ...]) -> bool:
    if len(value) > _SHORT:
        return False
    return msgspec.json.decode(value or b"null") in (None, *harmless)


def one_prompt(body: CompletionRequest) -> str | list[int]:
    """The prompt, which some clients put into a list; raises InvalidArgument for several."""
    match body.prompt:
        case str(text) | [str(text)]:
            return text
        case [*ids] if ids and all(isinstance(token, int) for token in ids):
            return cast("list[int]", ids)
        case _:
            problem = "prompt: expected a text, token ids, or a list of one text"
            raise InvalidArgument(f"{problem}; ask once for each prompt", field="prompt")


def to_sampling(
    body: Generation, max_tokens: int | None, logprobs: int | None
) -> generator_pb2.SamplingParams:
    """The options of sampling."""
    return generator_pb2.SamplingParams(
        **{name: getattr(body, name) for name in _SAMPLING},
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
    )


def flatten(
    messages: list[Message], image_token: str
) -> tuple[list[dict[str, str]], list[handoff_pb2.ImageInput]]:
    """The messages as text, with a placeholder in the place of each image; and the images.

    Raises InvalidArgument for a placeholder that the caller wrote, which would take the
    place of an image.
    """
    flat, images = [], []
    for index, message in enumerate(messages):
        parts = message.content or []
        pieces = []
        for part in [TextPart(parts)] if isinstance(parts, str) else parts:
            if isinstance(part, ImagePart):
                images.append(handoff_pb2.ImageInput(url=part.image_url.url))
                pieces.append(image_token)
            elif image_token and image_token in part.text:
                field = f"messages[{index}].content"
                raise InvalidArgument(f"{field}: {image_token!r} stands for images", field=field)
            else:
                pieces.append(part.text)
        flat.append({"role": message.role, "content": "".join(pieces)})
    return flat, images


def check_chat(body: ChatRequest, images: int, encoder: str | None) -> None:
    """Raise for what this shim cannot do."""
    if body.top_logprobs and not body.logprobs:
        field = "top_logprobs"
        raise InvalidArgument(f"{field}: expected logprobs to be true with it", field=field)
    if not body.messages:
        raise InvalidArgument("messages: expected at least one, got none", field="messages")
    if images and not encoder:
        raise FailedPrecondition("messages: images are not offered here (--image-encoder)")
