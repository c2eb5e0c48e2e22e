"""A batch is cut and put together without losing or moving anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorway import envelope, sharding
from tensorway.errors import InvalidArgument
from tensorway.sharding import Shard, split
from tensorway.v1 import embedding_pb2

SIZES = st.lists(st.floats(1, 1000), min_size=1, max_size=60)
WEIGHTS = st.lists(st.floats(0.1, 1000), min_size=1, max_size=8)


@given(SIZES, WEIGHTS)
def test_every_input_is_in_exactly_one_shard(sizes: list[float], weights: list[float]) -> None:
    """Shards follow each other without a gap, and none is empty."""
    shards = split(sizes, weights)

    covered = [index for shard in shards for index in range(shard.start, shard.stop)]
    assert covered == list(range(len(sizes)))
    assert all(shard.start < shard.stop for shard in shards)
    assert len(shards) == min(len(sizes), len(weights))


def test_shards_are_in_proportion_to_weights() -> None:
    """A worker with three times the room gets three times the inputs."""
    assert split([1.0] * 80, [3, 1]) == [Shard(0, 60), Shard(60, 80)]


def test_long_inputs_weigh_more() -> None:
    """Shards are even in work, not in number."""
    assert split([30.0] + [1.0] * 30, [1, 1]) == [Shard(0, 1), Shard(1, 31)]


def test_a_part_keeps_everything_but_the_other_inputs() -> None:
    """Options, ids and fields the view knows nothing of stay."""
    whole = embedding_pb2.EmbedRequest(
        model="m",
        texts={"texts": ["a", "b", "c"]},
        dimensions=4,
        add_special_tokens=False,
        request_id="r",
    )
    view = envelope.read_embed(whole.SerializeToString())

    part = embedding_pb2.EmbedRequest.FromString(sharding.part(view, Shard(1, 3)))

    whole.texts.texts[:] = ["b", "c"]
    assert part == whole


def test_a_part_of_token_ids() -> None:
    """Token sequences are cut as texts are."""
    whole = embedding_pb2.EmbedRequest(
        model="m", tokens={"sequences": [{"ids": [1, 300]}, {"ids": [7]}]}
    )
    view = envelope.read_embed(whole.SerializeToString())

    part = embedding_pb2.EmbedRequest.FromString(sharding.part(view, Shard(1, 2)))

    assert [list(sequence.ids) for sequence in part.tokens.sequences] == [[7]]


def test_an_error_names_the_input_of_the_whole_request() -> None:
    """The caller does not know of shards."""
    path = "tokens.sequences[3].ids[5]"
    error = sharding.shift(InvalidArgument(f"{path}: out of range", field=path), 40)

    assert error.field == "tokens.sequences[43].ids[5]"
    assert str(error) == error.message == "tokens.sequences[43].ids[5]: out of range"


def test_an_error_without_an_index_stays() -> None:
    """A bad option is the same in each shard."""
    error = sharding.shift(InvalidArgument("dimensions: too large", field="dimensions"), 40)

    assert (error.field, error.message) == ("dimensions", "dimensions: too large")


def test_bytes_that_are_no_request_are_the_callers_mistake() -> None:
    """A parser's error must not become INTERNAL."""
    with pytest.raises(InvalidArgument, match="EmbedRequest"):
        envelope.read_embed(b"\xff\xff")


def test_a_message_is_renamed_without_being_read() -> None:
    """What is appended replaces the name and nothing else."""
    request = embedding_pb2.EmbedRequest(model="alias", texts={"texts": ["a"]}, dimensions=3)

    renamed = envelope.renamed(request.SerializeToString(), "model")

    request.model = "model"
    assert embedding_pb2.EmbedRequest.FromString(renamed) == request


def test_an_input_is_the_same_work_alone_and_in_a_list() -> None:
    """Admission and balancing see texts and token ids, one or many, by their size."""
    texts = embedding_pb2.EmbedRequest(texts={"texts": ["a" * 400] * 3})
    view = envelope.read_embed(texts.SerializeToString())

    assert 300 <= envelope.work(view, len(texts.SerializeToString())) <= 320
