"""Bodies of requests: what clients send, as typed values. null means absent everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from tensorway.errors import InvalidArgument

from .inputs import Input

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
EncodingFormat = Literal["float", "base64"]


class EmbeddingRequest(msgspec.Struct):
    """Body of POST /v1/embeddings."""

    model: str
    input: Input
    encoding_format: EncodingFormat | None = None
    dimensions: Int32 | None = None
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class PoolingRequest(msgspec.Struct):
    """Body of POST /v1/pooling."""

    model: str
    input: Input
    task: Literal["token_embed", "sparse_embed"] | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: Int32 | None = None
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None
    add_special_tokens: bool | None = None


class ClassifyRequest(msgspec.Struct):
    """Body of POST /v1/classify."""

    model: str
    input: Input
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None


class Document(msgspec.Struct):
    """A document of a rerank request, as an object."""

    text: str


class RerankRequest(msgspec.Struct):
    """Body of POST /v1/rerank; ``top_n`` 0 is all."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: Int32 | None = None
    return_documents: bool | None = None
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None


class ScoreRequest(msgspec.Struct):
    """Body of POST /v1/score: a text with each of others, or two lists pair by pair."""

    model: str
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    """Another name of text_1."""
    documents: str | list[str] | None = None
    """Another name of text_2."""
    user: Any = None
    truncate_prompt_tokens: Int32 | None = None


T = TypeVar("T", bound=msgspec.Struct)


def decoder(kind: type[T], *, strict: bool) -> msgspec.json.Decoder[T]:
    """A decoder of a body; a strict one refuses fields that the API does not know."""
    if not strict:
        return msgspec.json.Decoder(kind)
    name = f"Strict{kind.__name__}"
    refusing = msgspec.defstruct(name, [], bases=(kind,), forbid_unknown_fields=True)
    return msgspec.json.Decoder(cast("type[T]", refusing))


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
