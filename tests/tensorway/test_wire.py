"""The private view of an answer, in which a vector is bytes, against the public message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorway import wire
from tensorway.v1 import common_pb2, embedding_pb2, tensor_pb2

FLOAT32 = st.floats(width=32, allow_nan=False)
VECTOR = st.lists(FLOAT32, max_size=8)


@st.composite
def answers(draw: Any) -> embedding_pb2.EmbedResponse:
    """Any public answer."""
    embeddings = [
        embedding_pb2.Embedding(
            index=draw(st.integers(0, 2**32 - 1)),
            values=draw(VECTOR),
            packed=draw(st.binary(max_size=8)),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    tokens = draw(st.integers(0, 2**32 - 1))
    return embedding_pb2.EmbedResponse(
        model=draw(st.text(max_size=8)),
        dimensions=draw(st.integers(0, 2**32 - 1)),
        embeddings=embeddings,
        usage=common_pb2.Usage(prompt_tokens=tokens, total_tokens=tokens),
        request_id=draw(st.text(max_size=8)),
        element_type=tensor_pb2.ELEMENT_TYPE_FLOAT32,
    )


def as_view(answer: embedding_pb2.EmbedResponse) -> Any:
    """The same answer built as the view, field by field."""
    view = wire.EmbedResponse(
        model=answer.model,
        dimensions=answer.dimensions,
        usage=answer.usage,
        request_id=answer.request_id,
        element_type=answer.element_type,
    )
    for embedding in answer.embeddings:
        view.embeddings.add(
            index=embedding.index,
            values=np.array(embedding.values, "<f4").tobytes(),
            packed=embedding.packed,
        )
    return view


@given(answers())
def test_both_write_the_same_bytes(answer: embedding_pb2.EmbedResponse) -> None:
    """What Python's hot paths write is what any client's own code would."""
    assert as_view(answer).SerializeToString(deterministic=True) == answer.SerializeToString(
        deterministic=True
    )


@given(answers())
def test_each_reads_the_others_bytes(answer: embedding_pb2.EmbedResponse) -> None:
    """Both ways, number by number."""
    view = wire.EmbedResponse.FromString(answer.SerializeToString())
    assert view == as_view(answer)
    assert embedding_pb2.EmbedResponse.FromString(view.SerializeToString()) == answer
    for mine, theirs in zip(view.embeddings, answer.embeddings, strict=True):
        assert np.frombuffer(mine.values, "<f4").tolist() == list(theirs.values)


def test_special_numbers_keep_their_bits() -> None:
    """Not-a-number with a payload, infinities and minus zero pass unchanged."""
    bits = np.array([0x7FC00001, 0x7F800000, 0xFF800000, 0x80000000, 1], "<u4").tobytes()
    view = wire.EmbedResponse()
    view.embeddings.add(values=bits)
    answer = embedding_pb2.EmbedResponse.FromString(view.SerializeToString())
    back = wire.EmbedResponse.FromString(answer.SerializeToString())
    assert back.embeddings[0].values == bits


def test_the_view_has_every_field() -> None:
    """A field that is added to the contract is in the view too."""
    for view, public in (
        (wire.EmbedResponse.DESCRIPTOR, embedding_pb2.EmbedResponse.DESCRIPTOR),
        (
            wire.EmbedResponse.DESCRIPTOR.fields_by_name["embeddings"].message_type,
            embedding_pb2.Embedding.DESCRIPTOR,
        ),
    ):
        assert [(f.name, f.number) for f in view.fields] == [
            (f.name, f.number) for f in public.fields
        ]


@given(st.lists(st.lists(VECTOR, max_size=4), max_size=4))
def test_merge(parts: list[list[list[float]]]) -> None:
    """Parts of a request, each with its own numbering, become one answer in input order."""
    answers = []
    for vectors in parts:
        part = wire.EmbedResponse(model="m", dimensions=8, request_id="r")
        part.usage.prompt_tokens = part.usage.total_tokens = 10 * len(vectors)
        for index, vector in enumerate(vectors):
            part.embeddings.add(index=index, values=np.array(vector, "<f4").tobytes())
        answers.append(part.SerializeToString())
    merged = wire.EmbedResponse.FromString(wire.merge_embeddings(answers))
    flat = [np.array(vector, "<f4").tobytes() for vectors in parts for vector in vectors]
    assert [embedding.values for embedding in merged.embeddings] == flat
    assert [embedding.index for embedding in merged.embeddings] == list(range(len(flat)))
    assert merged.usage.prompt_tokens == merged.usage.total_tokens == 10 * len(flat)
    assert (merged.model, merged.request_id) == (("m", "r") if parts else ("", ""))


@pytest.mark.parametrize("count", [0, 1, 2, 128, 129, 16385])
@pytest.mark.parametrize("width", [1, 31, 32, 384])
def test_rows_are_written_as_messages_would_be(count: int, width: int) -> None:
    """Rows written at once are byte for byte what a message object for each row gives."""
    rows = np.random.default_rng(width).random((count, width)).astype("<f4")
    expected = embedding_pb2.EmbedResponse()
    for index, row in enumerate(rows):
        expected.embeddings.add(index=index, values=row)
    assert wire.embeddings(rows, "values") == expected.SerializeToString()


def test_narrow_rows_are_written_as_they_are() -> None:
    """A row of one-byte numbers is the bytes of its entry."""
    rows = np.arange(600, dtype=np.int8).reshape(200, 3)
    answer = embedding_pb2.EmbedResponse.FromString(wire.embeddings(rows, "packed"))
    assert [entry.packed for entry in answer.embeddings] == [row.tobytes() for row in rows]
    assert [entry.index for entry in answer.embeddings] == list(range(200))
