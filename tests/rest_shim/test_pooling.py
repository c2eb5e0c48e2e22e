"""The other pooling routes: bodies of vLLM's clients, answers in vLLM's shapes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from rest_shim.options import RestOptions
from tests.rest_shim.conftest import Shim, Shims
from tests.rest_shim.fakes import MODEL

DOCUMENTS = ["aa", "aaaa", "a"]


async def post(shim: Shim, route: str, **body: Any) -> Any:
    """The answer to a body, for the fake's model."""
    answer = await shim.http.post(f"/v1/{route}", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_rerank(shim: Shim):
    """Best first, with scores as short as float32 is, and the documents."""
    answer = await post(shim, "rerank", query="q", documents=DOCUMENTS, top_n=2)
    assert answer["results"] == [
        {"index": 1, "relevance_score": 0.4, "document": {"text": "aaaa"}},
        {"index": 0, "relevance_score": 0.2, "document": {"text": "aa"}},
    ]
    assert (answer["model"], answer["id"]) == (MODEL, "r-1")
    assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


async def test_rerank_options(shim: Shim):
    """top_n 0 and null are all; documents may be objects, and may be left out."""
    documents = [{"text": text} for text in DOCUMENTS]
    for top_n in (0, None):
        answer = await post(
            shim, "rerank", query="q", documents=documents, top_n=top_n, return_documents=False
        )
        assert [result["index"] for result in answer["results"]] == [1, 0, 2]
        assert all("document" not in result for result in answer["results"])


@pytest.mark.parametrize(("first", "second"), [("text_1", "text_2"), ("queries", "documents")])
async def test_score_one_text_with_many(shim: Shim, first: str, second: str):
    """One text with each of the others, under both pairs of names."""
    answer = await post(shim, "score", **{first: "a", second: DOCUMENTS})
    assert [item["score"] for item in answer["data"]] == [0.1, 0.3, 0.0]
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert answer["data"][0]["object"] == "score"
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


async def test_score_pair_by_pair(shim: Shim):
    """Two lists of equal length are pairs; the cost is that of all."""
    answer = await post(shim, "score", text_1=["a", "aa"], text_2=["aa", "aa"])
    assert [item["score"] for item in answer["data"]] == [0.1, 0.0]
    assert answer["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "", "text_2": ["a"]}, "text_1"),
        ({"queries": ["a", ""], "documents": ["a", "a"]}, "queries[1]"),
        ({"text_1": "a", "text_2": ["a", ""]}, "text_2[1]"),
        ({"text_1": ["a", "a"], "documents": ["a", ""]}, "documents[1]"),
    ],
)
async def test_score_names_what_the_caller_wrote(shim: Shim, body: dict[str, Any], param: str):
    """A refused text has the field and the index of the caller's own lists."""
    answer = await shim.http.post("/v1/score", json={"model": MODEL, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param}: expected a text, got none"


async def test_pairs_are_bounded(shim: Shim):
    """As many pairs as a worker takes inputs, and no more."""
    body = {"model": MODEL, "text_1": ["a"] * 2049, "text_2": ["b"] * 2049}
    answer = await shim.http.post("/v1/score", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "text_1")


async def test_classify(shim: Shim):
    """The likeliest class and the score of each."""
    answer = await post(shim, "classify", input=["a", "b"])
    assert answer["data"] == [
        {"index": index, "label": "short", "probs": [0.9, 0.1], "num_classes": 2}
        for index in range(2)
    ]


async def test_pooling_gives_a_vector_for_each_token(shim: Shim):
    """A matrix for each input, or the same numbers as base64."""
    answer = await post(shim, "pooling", input=["ab"])
    assert answer["data"] == [{"index": 0, "object": "pooling", "data": [[0.0, 0.1], [1.0, 0.1]]}]
    packed = await post(shim, "pooling", input=[7, 8], encoding_format="base64")
    numbers = np.frombuffer(base64.b64decode(packed["data"][0]["data"]), "<f4")
    assert numbers.tolist() == np.array([0, 0.1, 1, 0.1], "<f4").tolist()


async def test_sparse_pooling(shim: Shim):
    """Terms and their weights."""
    answer = await post(shim, "pooling", input="abc", task="sparse_embed")
    assert answer["data"] == [
        {"index": 0, "object": "pooling", "data": {"indices": [3], "values": [0.1]}}
    ]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("rerank", {"query": "q", "documents": ["a", 1]}, "documents[1]"),
        ("rerank", {"query": "q", "documents": "a"}, "documents"),
        ("rerank", {"documents": []}, "query"),
        ("score", {"text_2": "a"}, "text_1"),
        ("score", {"text_1": "a"}, "text_2"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("classify", {"input": ["a", ""]}, "input[1]"),
        ("pooling", {"input": "a", "task": "generate"}, "task"),
        ("pooling", {"input": [["a"]]}, "input[0][0]"),
    ],
)
async def test_bad_bodies_are_named(shim: Shim, route: str, body: dict[str, Any], param: str):
    """Status 400 with the field."""
    answer = await shim.http.post(f"/v1/{route}", json={"model": MODEL, **body})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"] or "") == param


@pytest.mark.parametrize("route", ["embeddings", "rerank", "score", "classify", "pooling"])
async def test_strict_holds_for_every_route(shims: Shims, route: str):
    """Fields that the API does not know are refused, whatever the route."""
    async with shims(RestOptions(strict=True)) as shim:
        fields = {"input": "a", "query": "a", "documents": ["a"], "text_1": "a", "text_2": "a"}
        answer = await shim.http.post(f"/v1/{route}", json={"model": MODEL, "odd": 1, **fields})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_argument")
