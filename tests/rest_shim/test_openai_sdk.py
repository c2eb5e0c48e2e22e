"""The official OpenAI SDK against a running shim: encodings, token arrays, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import openai
import pytest

from tensorway import errors
from tests.rest_shim.conftest import Shim
from tests.rest_shim.fakes import ALIAS, MODEL, vector


@pytest.fixture
async def client(shim: Shim) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, as its README makes it."""
    options = {"base_url": f"{shim.url}/v1", "api_key": "none", "max_retries": 0}
    async with openai.AsyncOpenAI(**options) as client:
        yield client


async def test_sdk_default_is_base64_and_decodes(client: openai.AsyncOpenAI):
    """Without a format the SDK asks for base64, and hands floats to its caller."""
    answer = await client.embeddings.create(model=MODEL, input=["a", "b"])
    assert np.array_equal([d.embedding for d in answer.data], [vector("a"), vector("b")])
    assert (answer.model, answer.object, answer.usage.prompt_tokens) == (MODEL, "list", 2)


async def test_sdk_floats_equal_its_default(client: openai.AsyncOpenAI):
    """Both encodings are the same float32 numbers."""
    floats = await client.embeddings.create(model=MODEL, input="a", encoding_format="float")
    assert np.array_equal(np.array(floats.data[0].embedding, "<f4"), vector("a"))


async def test_sdk_token_arrays(client: openai.AsyncOpenAI):
    """One array of ids is one input, an array of arrays is several."""
    one = await client.embeddings.create(model=MODEL, input=[7, 8])
    assert np.array_equal([d.embedding for d in one.data], [vector([7, 8])])
    two = await client.embeddings.create(model=MODEL, input=[[7, 8], [9]])
    assert np.array_equal([d.embedding for d in two.data], [vector([7, 8]), vector([9])])


async def test_sdk_2048_inputs(client: openai.AsyncOpenAI):
    """OpenAI's largest batch comes back whole and in order."""
    texts = [str(i) for i in range(2048)]
    answer = await client.embeddings.create(model=MODEL, input=texts)
    assert [d.index for d in answer.data] == list(range(2048))
    assert np.array_equal(answer.data[2047].embedding, vector("2047"))


async def test_sdk_lists_models_and_aliases(client: openai.AsyncOpenAI):
    """The list holds every name that may be asked for, and each can be retrieved."""
    models = (await client.models.list()).data
    assert [m.id for m in models] == [MODEL, ALIAS]
    for model in models:
        assert await client.models.retrieve(model.id) == model
    assert (models[0].object, models[0].owned_by) == ("model", "tensorway")
    assert models[0].created == 1_700_000_000


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidArgument("bad"), openai.BadRequestError),
        (errors.FailedPrecondition("bad"), openai.BadRequestError),
        (errors.Unauthenticated("bad"), openai.AuthenticationError),
        (errors.NotFound("bad"), openai.NotFoundError),
        (errors.AlreadyExists("bad"), openai.ConflictError),
        (errors.ResourceExhausted("bad"), openai.RateLimitError),
        (errors.Unavailable("bad"), openai.InternalServerError),
        (errors.DeadlineExceeded("bad"), openai.InternalServerError),
        (errors.Internal("bad"), openai.InternalServerError),
        (errors.TooLarge("bad"), openai.APIStatusError),
    ],
)
async def test_sdk_error_classes(
    shim: Shim,
    client: openai.AsyncOpenAI,
    error: errors.TensorwayError,
    kind: type[openai.APIStatusError],
):
    """Each error arrives as the SDK's own class, with its message and code."""
    shim.router.error = error
    with pytest.raises(openai.APIStatusError) as raised:
        await client.embeddings.create(model=MODEL, input="a")
    assert type(raised.value) is kind
    assert raised.value.code == error.reason.lower()
    assert raised.value.status_code == errors.http_status(error)


async def test_sdk_retries_after_an_overload(shim: Shim):
    """With its default retries the SDK waits as Retry-After says, and then succeeds."""
    shim.router.error = errors.ResourceExhausted("busy", retry_after=0.1)
    shim.router.errors_left = 1
    async with openai.AsyncOpenAI(base_url=f"{shim.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model=MODEL, input="a")
    assert np.array_equal(answer.data[0].embedding, vector("a"))
    assert len(shim.router.requests) == 2
