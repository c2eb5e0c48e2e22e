"""Sampling parameters: what passes as vLLM names it, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from generator_service import sampling
from tensorway.errors import FailedPrecondition, InvalidArgument
from tensorway.v1 import generator_pb2
from tests.generator_service.fakes import INFO


def read(text: bool = True, **fields: Any) -> dict[str, Any]:
    """The checked parameters."""
    return dict(sampling.read(generator_pb2.SamplingParams(**fields), text, INFO).sampling)


def test_what_is_absent_is_left_to_the_engine() -> None:
    """Only what was given is passed; zero is a value."""
    assert read() == {}
    assert read(temperature=0.0, seed=0, ignore_eos=False) == {
        "temperature": 0.0,
        "seed": 0,
        "ignore_eos": False,
    }


def test_floats_are_what_the_caller_wrote() -> None:
    """32 bits on the wire do not turn 0.1 into something longer."""
    assert read(top_p=0.1, stop=["a"], stop_token_ids=[3]) == {
        "top_p": 0.1,
        "stop": ["a"],
        "stop_token_ids": [3],
    }


BAD = {
    "temperature": ({"temperature": -0.1}, "temperature: expected at least 0 and at most 2"),
    "hot": ({"temperature": 2.1}, "temperature: expected at least 0 and at most 2"),
    "nan": ({"temperature": math.nan}, "temperature: .*got nan"),
    "infinite": ({"temperature": math.inf}, "temperature: .*got inf"),
    "top_p 0": ({"top_p": 0.0}, "top_p: expected above 0 and at most 1, got 0"),
    "top_p 2": ({"top_p": 2.0}, "top_p"),
    "top_k": ({"top_k": -2}, "top_k"),
    "min_p": ({"min_p": 1.5}, "min_p"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens: expected at least 1"),
    "many tokens": ({"max_tokens": 2**32 - 1}, "max_tokens"),
    "min over max": ({"min_tokens": 20}, "min_tokens: expected at most max_tokens 16, got 20"),
    "presence": ({"presence_penalty": 2.5}, "presence_penalty"),
    "frequency": ({"frequency_penalty": -2.5}, "frequency_penalty"),
    "repetition": ({"repetition_penalty": 0.0}, "repetition_penalty: expected above 0"),
    "logprobs": ({"logprobs": 6}, "logprobs: expected at most 5, got 6"),
    "empty stop": ({"stop": [""]}, r"stop\[0\]: expected 1 to 1024 characters, got 0"),
    "many stops": ({"stop": ["x"] * 17}, "stop: expected at most 16 values, got 17"),
    "stop token": ({"stop_token_ids": [5, 100]}, r"stop_token_ids\[1\]: .*below 100, got 100"),
}


@pytest.mark.parametrize(("fields", "match"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_by_name(fields: dict[str, Any], match: str) -> None:
    """Each parameter has a range, and the message says which."""
    with pytest.raises(InvalidArgument, match=f"sampling_params.{match}") as raised:
        read(**fields)
    assert raised.value.field.startswith("sampling_params.")


def test_stop_texts_need_text() -> None:
    """Texts cannot end what is never made to text."""
    with pytest.raises(InvalidArgument, match="stop: expected return_text with it"):
        read(text=False, stop=["x"])


def test_text_needs_a_tokenizer() -> None:
    """A generator without one says so."""
    info = replace(INFO, has_tokenizer=False)
    with pytest.raises(FailedPrecondition, match="without a tokenizer"):
        sampling.read(generator_pb2.SamplingParams(), True, info)
