"""Token ids: the model's own, refused, or LangChain's, which become texts again."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from rest_shim.app import create_app
from rest_shim.options import RestOptions
from tensorway.flags import BadFlag
from tensorway.options import DialOptions
from tests.rest_shim.conftest import Shim, Shims, Stack
from tests.rest_shim.fakes import MODEL, vector

# It ships OpenAI's vocabularies, by the names under which tiktoken looks for them.
CACHE = Path(find_spec("llama_index.core").origin).parent / "_static/tiktoken_cache"
CL100K = CACHE / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
TEXTS = ["The cat sleeps on the sofa.", "naïve café 東京 🙂", "x", "two\nlines"]


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain fetches no vocabulary, since it has one."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(CACHE))


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client for LangChain, which does not close its own."""
    async with httpx.AsyncClient() as client:
        yield client


def langchain(http: httpx.AsyncClient, url: str, model: str = MODEL, **options: Any) -> Any:
    """LangChain's embeddings with its defaults, but for where to ask."""
    url = f"{url}/v1"
    return OpenAIEmbeddings(
        base_url=url, api_key="none", model=model, http_async_client=http, **options
    )


async def test_langchains_own_ids_are_refused_with_advice(http: httpx.AsyncClient, stack: Stack):
    """Ids outside of the model's vocabulary are an error that says what LangChain needs."""
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as raised:
        await langchain(http, stack.url, "minilm").aembed_documents(TEXTS)
    assert raised.value.param == "input[0][1]"
    assert "input[0][1]: expected 0 to " in raised.value.message


async def test_langchain_as_advised(http: httpx.AsyncClient, shim: Shim):
    """With that setting the texts themselves arrive, all of them and in order."""
    client = langchain(http, shim.url, check_embedding_ctx_length=False)
    assert await client.aembed_documents(TEXTS) == [vector(text).tolist() for text in TEXTS]


async def test_langchain_with_its_defaults(http: httpx.AsyncClient, shims: Shims):
    """A shim that is given OpenAI's vocabulary turns the ids into the texts they were."""
    async with shims(RestOptions(token_ids=str(CL100K))) as shim:
        answers = await langchain(http, shim.url).aembed_documents(TEXTS)
        assert [list(request.texts.texts) for request in shim.router.requests] == [TEXTS]
        assert answers == [vector(text).tolist() for text in TEXTS]


async def test_ids_of_a_vocabulary(shims: Shims):
    """One list is one text; ids that are none are refused, and a cut character is replaced."""
    async with shims(RestOptions(token_ids=str(CL100K))) as shim:
        # "hello world" is 15339, 1917; 9468 is the first half of an emoji.
        for given, texts in (([15339, 1917], ["hello world"]), ([[9468], [87]], ["\ufffd", "x"])):
            assert (await shim.embed(input=given)).status_code == 200
            assert list(shim.router.requests[-1].texts.texts) == texts
        answer = await shim.embed(input=[[1], [2, 999_999]])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[1][1]")


async def test_no_ids_at_all(http: httpx.AsyncClient, shims: Shims):
    """A shim may refuse ids, since nobody can see that they are another model's."""
    async with shims(RestOptions(token_ids="refuse")) as shim:
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
            await langchain(http, shim.url).aembed_query("x")
        for given, param in (([1, 2], "input"), ([[1], [2]], "input[0]")):
            answer = await shim.embed(input=given)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert not shim.router.requests
        assert (await shim.embed(input=["a", "b"])).status_code == 200


@pytest.mark.parametrize("content", ["{}", "notbase64 1", base64.b64encode(b"x").decode(), None])
def test_what_is_no_vocabulary(tmp_path: Path, content: str | None):
    """A file that is none, or is not there, stops the start."""
    file = tmp_path / "vocabulary"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadFlag, match="--token-ids: expected model, refuse or a vocabulary"):
        create_app(RestOptions(token_ids=str(file)), DialOptions())
