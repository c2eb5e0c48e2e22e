"""Bodies of requests: what clients send, as typed values. null means absent everywhere."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from tensorway.errors import InvalidArgument

from .amounts import check_amounts
from .inputs import Input

_MISSING = re.compile("Object missing required field `(.+)`")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MIN, _MAX = -(2**31), 2**31 - 1
Model = Annotated[str, msgspec.Meta(description="Name of the model, as /v1/models shows it.")]
Inputs = Annotated[
    Input,
    msgspec.Meta(description="A text, texts, one list of token ids, or lists of token ids."),
]
EncodingFormat = Annotated[
    Literal["float", "base64"] | None,
    msgspec.Meta(description="Numbers as JSON (the default), or base64 of float32."),
]
Dimensions = Annotated[
    Annotated[int, msgspec.Meta(ge=_MIN, le=_MAX)] | None,
    msgspec.Meta(description="Numbers per vector; fewer than the model's need Matryoshka."),
]
Truncate = Annotated[
    Annotated[int, msgspec.Meta(ge=_MIN, le=_MAX)] | None,
    msgspec.Meta(description="Cut longer inputs to so many tokens; -1: the model's limit."),
]
Special = Annotated[
    bool | None,
    msgspec.Meta(description="Whether texts get the tokenizer's special tokens; default true."),
]
# Anything, of which nothing is made.
User = Annotated[msgspec.Raw, msgspec.Meta(description="Accepted and ignored.")]


class Vectors(msgspec.Struct, kw_only=True):
    """How vectors are given.

    Most fields are vLLM's, and have one value here: ignored, they would give a caller who
    set them wrong numbers.
    """

    encoding_format: EncodingFormat = None
    embed_dtype: Annotated[
        Literal["float32"] | None, msgspec.Meta(description="Type of the numbers in base64.")
    ] = None
    endianness: Annotated[
        Literal["native", "little"] | None, msgspec.Meta(description="Their byte order.")
    ] = None
    use_activation: Annotated[
        bool | None, msgspec.Meta(description="The model says whether vectors are normalised.")
    ] = None

    def check(self) -> None:
        """Raise for what is not offered."""
        if self.use_activation is False:
            problem = "use_activation: false is not offered; the model's configuration decides"
            raise InvalidArgument(problem, field="use_activation")


class EmbeddingRequest(Vectors, kw_only=True):
    """Body of POST /v1/embeddings."""

    model: Model
    input: Inputs
    dimensions: Dimensions = None
    user: User = msgspec.field(default_factory=msgspec.Raw)
    truncate_prompt_tokens: Truncate = None
    add_special_tokens: Special = None
    prompt_name: Annotated[
        str | None,
        msgspec.Meta(description="A prompt of the model to put first, as query or document."),
    ] = None


class PoolingRequest(Vectors, kw_only=True):
    """Body of POST /v1/pooling."""

    model: Model
    input: Inputs
    task: Annotated[
        Literal["token_embed", "sparse_embed"] | None,
        msgspec.Meta(description="A vector for each token (the default), or weighted terms."),
    ] = None
    dimensions: Dimensions = None
    user: User = msgspec.field(default_factory=msgspec.Raw)
    truncate_prompt_tokens: Truncate = None
    add_special_tokens: Special = None


class ClassifyRequest(msgspec.Struct):
    """Body of POST /v1/classify."""

    model: Model
    input: Inputs
    user: User = msgspec.field(default_factory=msgspec.Raw)
    truncate_prompt_tokens: Truncate = None


class Document(msgspec.Struct):
    """A document of a rerank request, as an object."""

    text: str


class RerankRequest(msgspec.Struct):
    """Body of POST /v1/rerank."""

    model: Model
    query: str
    documents: list[str | Document]
    top_n: Annotated[
        Annotated[int, msgspec.Meta(ge=_MIN, le=_MAX)] | None,
        msgspec.Meta(description="Most results to return; 0 or absent: all."),
    ] = None
    return_documents: Annotated[
        bool | None, msgspec.Meta(description="Whether results carry the text; default true.")
    ] = None
    user: User = msgspec.field(default_factory=msgspec.Raw)
    truncate_prompt_tokens: Truncate = None


Texts = str | list[str] | None


class ScoreRequest(msgspec.Struct):
    """Body of POST /v1/score: a text with each of others, or two lists pair by pair."""

    model: Model
    text_1: Annotated[Texts, msgspec.Meta(description="The text, or the first of each pair.")] = (
        None
    )
    text_2: Annotated[Texts, msgspec.Meta(description="The others, or the second ones.")] = None
    queries: Annotated[Texts, msgspec.Meta(description="Another name of text_1.")] = None
    documents: Annotated[Texts, msgspec.Meta(description="Another name of text_2.")] = None
    user: User = msgspec.field(default_factory=msgspec.Raw)
    truncate_prompt_tokens: Truncate = None


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
        check_amounts(body)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").removeprefix(".")
        if missing := _MISSING.fullmatch(problem):
            field = f"{field}.{missing[1]}" if field else missing[1]
            problem = "is required"
        if problem.startswith("Invalid enum value"):
            choices = ", ".join(_choices(decoder.type, field.rpartition(".")[2]))
            problem = f"expected one of {choices}, got{problem.removeprefix('Invalid enum value')}"
        raise InvalidArgument(f"{field or 'body'}: {_lower(problem)}", field=field) from None
    except (msgspec.DecodeError, RecursionError) as error:
        problem = _lower(str(error))
        if _SURROGATE.search(body):
            problem += "; half of a surrogate pair is no character"
        raise InvalidArgument(f"body: expected JSON: {problem}") from None


def _lower(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _choices(kind: Any, name: str) -> list[str]:
    """The values that a field of that name may have, which msgspec's error leaves out."""
    _, shapes = msgspec.json.schema_components([kind])
    fields = [shape["properties"][name] for shape in shapes.values() if name in shape["properties"]]
    options = [option for field in fields for option in field.get("anyOf", [field])]
    return [value for option in options for value in option.get("enum", ())]
