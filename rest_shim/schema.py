"""Bodies of requests: what OpenAI's clients send, as typed values."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from tensorway.errors import InvalidArgument

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class EmbeddingRequest(msgspec.Struct):
    """Body of POST /v1/embeddings; null means absent."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int32 | None = None
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class StrictEmbeddingRequest(EmbeddingRequest, forbid_unknown_fields=True):
    """The same, when fields that the API does not know are refused."""


T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the decoder's type; raises InvalidArgument that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").removeprefix(".")
        raise InvalidArgument(f"{field or 'body'}: {_lower(problem)}", field=field) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"body: expected JSON: {_lower(str(error))}") from None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
