"""The description against the running shim: what it says is what happens."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis
import msgspec
import pytest
import schemathesis
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from rest_shim import answers
from tests.rest_shim.conftest import Shim
from tests.rest_shim.fakes import MODEL

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.mark.timeout(240)
async def test_random_requests_never_surprise(shim: Shim):
    """Good and bad bodies made from the description get answers that it allows."""
    description = (await shim.http.get("/openapi.json")).json()
    description["components"]["schemas"]["EmbeddingRequest"]["properties"]["model"]["enum"] = [
        MODEL
    ]
    await asyncio.to_thread(fuzz, description, shim.url)


def fuzz(description: dict[str, Any], url: str) -> None:
    """Call every operation with generated requests; runs in a thread of its own."""
    schema = schemathesis.openapi.from_dict(description)
    for found in schema.get_all_operations():

        @hypothesis.settings(
            max_examples=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=found.ok().as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(base_url=url, checks=CHECKS)

        check()


@pytest.mark.parametrize(
    ("route", "body", "shape"),
    [
        ("embeddings", {"input": "a"}, answers.EmbeddingList),
        ("embeddings", {"input": "a", "encoding_format": "base64"}, answers.EmbeddingList),
        ("rerank", {"query": "q", "documents": ["a"]}, answers.Ranking),
        ("score", {"text_1": "q", "text_2": ["a"]}, answers.ScoreList),
        ("classify", {"input": "a"}, answers.ClassificationList),
        ("pooling", {"input": "a"}, answers.PooledList),
        ("pooling", {"input": "a", "task": "sparse_embed"}, answers.PooledList),
        ("models", None, answers.ModelList),
        (f"models/{MODEL}", None, answers.Model),
        ("models/none", None, answers.Error),
    ],
)
async def test_answers_have_the_described_shapes(shim: Shim, route: str, body: Any, shape: type):
    """Every answer has the fields of its shape, and no others."""
    method = "POST" if body else "GET"
    json = {"model": MODEL, **body} if body else None
    answer = await shim.http.request(method, f"/v1/{route}", json=json)
    assert msgspec.to_builtins(msgspec.json.decode(answer.content, type=shape)) == answer.json()


async def test_page_for_people(shim: Shim):
    """The page shows every operation, and refers to nothing outside."""
    page = await shim.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in (await shim.http.get("/openapi.json")).json()["paths"]:
        assert path in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text


async def test_methods_in_the_description(shim: Shim):
    """What creates is posted, what reads is got."""
    paths = (await shim.http.get("/openapi.json")).json()["paths"]
    assert list(paths["/v1/embeddings"]) == ["post"]
    assert list(paths["/v1/models/{model}"]) == ["get"]
