"""The shim beside `vllm serve`: the same requests, the same answers, and every difference told.

Both serve MiniLM in float32. Where ours differs on purpose, docs/rest.md has a row, and each
row is shown to be true of both by a request.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bench.gpu import free_port, stand_in
from tensorway.commands import demo
from tests.conftest import Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

DOCS = (Path(__file__).parents[2] / "docs/rest.md").read_text()
EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"
TOLERANCE = 1e-3
# The table says of these that only one of the two has them.
ONLY_THEIRS = {"id", "created", "multi_modal", "completion_tokens"}
ONLY_THEIRS |= {"prompt_tokens_details", "completion_tokens_details"}
LONG = "word " * 600


@dataclass(frozen=True)
class Servers:
    """A client of each."""

    theirs: httpx.Client
    ours: httpx.Client

    def ask(self, path: str, body: Any) -> tuple[httpx.Response, httpx.Response]:
        """The answers of both, theirs first; without a body it is GET."""
        theirs, ours = (
            client.get(path) if body is None else client.post(path, **_content(body))
            for client in (self.theirs, self.ours)
        )
        return theirs, ours


def _content(body: Any) -> dict[str, Any]:
    return {"content": body} if isinstance(body, bytes) else {"json": {"model": "minilm", **body}}


@pytest.fixture(scope="module")
def servers(minilm: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """`vllm serve`, and the shim that is up for the whole session."""
    (workers,) = demo.minilm(0, 0).workers
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "log"
    serve = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", workers.model)
    with stand_in() as path, log.open("wb") as output:
        process = subprocess.Popen(
            (*serve, *workers.args, "--port", str(port)),
            stdout=output,
            stderr=output,
            env={**os.environ, **workers.env, "PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1"},
        )
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as theirs,
            httpx.Client(base_url=minilm.rest, timeout=60) as ours,
        ):
            try:
                while not _is_up(theirs):
                    assert process.poll() is None, log.read_text()[-5000:]
                    time.sleep(0.2)
                yield Servers(theirs, ours)
            finally:
                process.terminate()
                process.wait(60)


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


SAME = [
    pytest.param(EMBEDDINGS, {"input": "hello world"}, id="text"),
    pytest.param(EMBEDDINGS, {"input": ["hello", "Über 東京 🙂", "a\0b", "   "]}, id="texts"),
    pytest.param(EMBEDDINGS, {"input": [7592, 2088]}, id="one list of ids"),
    pytest.param(EMBEDDINGS, {"input": [[7592], [2088, 999]]}, id="lists of ids"),
    pytest.param(EMBEDDINGS, {"input": "x", "encoding_format": "float"}, id="floats"),
    pytest.param(EMBEDDINGS, {"input": ["a", "b"], "encoding_format": "base64"}, id="base64"),
    pytest.param(EMBEDDINGS, {"input": LONG, "truncate_prompt_tokens": -1}, id="cut to the limit"),
    pytest.param(EMBEDDINGS, {"input": LONG, "truncate_prompt_tokens": 16}, id="cut"),
    pytest.param(EMBEDDINGS, {"input": [[7592] * 300], "truncate_prompt_tokens": -1}, id="cut ids"),
    pytest.param(EMBEDDINGS, {"input": "a b", "add_special_tokens": False}, id="no special tokens"),
    pytest.param(EMBEDDINGS, {"input": "x", "user": "me", "made_up": [1]}, id="unknown fields"),
    pytest.param(
        EMBEDDINGS, {"input": "x", "user": None, "dimensions": None, "made_up": None}, id="nulls"
    ),
    pytest.param(
        EMBEDDINGS,
        {"input": "x", "embed_dtype": "float32", "endianness": "little", "use_activation": True},
        id="defaults",
    ),
    pytest.param(EMBEDDINGS, {"input": []}, id="no inputs"),
    pytest.param(EMBEDDINGS, {"input": [[]]}, id="no ids"),
    pytest.param(EMBEDDINGS, {"input": ["a", [1]]}, id="mixed forms"),
    pytest.param(EMBEDDINGS, {"input": [1.5]}, id="a number that is no id"),
    pytest.param(EMBEDDINGS, {"input": [30522]}, id="an id outside of the vocabulary"),
    pytest.param(EMBEDDINGS, {"input": [-1]}, id="a negative id"),
    pytest.param(EMBEDDINGS, {"input": None}, id="null input"),
    pytest.param(EMBEDDINGS, {}, id="input missing"),
    pytest.param(EMBEDDINGS, {"input": LONG}, id="too long"),
    pytest.param(EMBEDDINGS, {"input": "x", "dimensions": 64}, id="no Matryoshka"),
    pytest.param(EMBEDDINGS, {"input": "x", "dimensions": 1.5}, id="half a dimension"),
    pytest.param(EMBEDDINGS, {"input": "x", "truncate_prompt_tokens": 9999}, id="cut above"),
    pytest.param(EMBEDDINGS, {"input": "x", "truncate_prompt_tokens": -2}, id="cut below"),
    pytest.param(EMBEDDINGS, {"input": "x", "encoding_format": "int8"}, id="no such format"),
    pytest.param(EMBEDDINGS, {"input": "x", "model": "nobody"}, id="no such model"),
    pytest.param(EMBEDDINGS, None, id="method"),
    pytest.param("/v1/nothing", None, id="route"),
    pytest.param(SCORE, {"text_1": "hello", "text_2": ["hi", "stocks"]}, id="one with many"),
    pytest.param(SCORE, {"queries": "hello", "documents": "hi"}, id="one with one"),
    pytest.param(SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d"]}, id="pairs"),
    pytest.param(SCORE, {"text_1": ["a", "b"], "text_2": ["c"] * 3}, id="no pairs"),
    pytest.param(SCORE, {"text_1": "a", "text_2": []}, id="nothing to score"),
    pytest.param(RERANK, {"query": "hello", "documents": ["stocks", "hi"]}, id="rerank"),
    pytest.param(RERANK, {"query": "a", "documents": ["b", "c"], "top_n": 1}, id="best"),
    pytest.param(RERANK, {"query": "a", "documents": ["b", "c"], "top_n": 0}, id="all"),
    pytest.param(RERANK, {"query": "a", "documents": ["b"], "top_n": -1}, id="less than none"),
]


@pytest.mark.parametrize(("path", "body"), SAME)
def test_the_same_request_has_the_same_answer(servers: Servers, path: str, body: Any) -> None:
    """Equal status; and if it is 200, equal shape, words and counts, and numbers within 1e-3."""
    theirs, ours = servers.ask(path, body)
    assert ours.status_code == theirs.status_code, ours.text
    if theirs.is_success:
        assert_alike(common(theirs.json()), common(ours.json()), "$")


def common(value: Any) -> Any:
    """An answer less what the table says that one of the two has not; base64 as numbers."""
    if isinstance(value, list):
        return [common(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: common(item) for key, item in value.items() if key not in ONLY_THEIRS}
    if isinstance(packed := kept.get("embedding"), str):
        kept["embedding"] = np.frombuffer(base64.b64decode(packed), "<f4").tolist()
    return kept


def assert_alike(theirs: Any, ours: Any, place: str) -> None:
    """Fail with the first place where they are not."""
    if isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=TOLERANCE), place
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for key, value in theirs.items():
            assert_alike(value, ours[key], f"{place}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for index, value in enumerate(theirs):
            assert_alike(value, ours[index], f"{place}[{index}]")
    else:
        assert (type(ours), ours) == (type(theirs), theirs), place


@dataclass(frozen=True)
class Difference:
    """A request that shows a row of the table to be true."""

    body: Any
    theirs: int
    ours: int
    path: str = EMBEDDINGS
    shows: Callable[[Any, Any], bool] = field(default=lambda _theirs, _ours: True)
    """Of the answers' JSON, where the statuses alone do not show it."""


def only_one_has(*keys: str) -> Callable[[Any, Any], bool]:
    """Whether their answer has these keys, and ours has none of them."""
    return lambda theirs, ours: set(keys) <= theirs.keys() and not set(keys) & ours.keys()


def error(answer: Any) -> Any:
    """What is in an error of either."""
    return answer["error"]


PAIR = {"text_1": "a", "text_2": "b"}
ONE = {"query": "a", "documents": ["b"]}
# First cell of the table's row -> how it is shown.
DIFFERENCES = {
    "`/v1/embeddings` and `/v1/score` answer with `id` and `created`": Difference(
        PAIR, 200, 200, SCORE, only_one_has("id", "created")
    ),
    "`usage` has `completion_tokens`, and two fields of details": Difference(
        {"input": "a"},
        200,
        200,
        shows=lambda theirs, ours: (
            theirs["usage"].keys() - ours["usage"].keys() == ONLY_THEIRS & theirs["usage"].keys()
            and ours["usage"].keys() == {"prompt_tokens", "total_tokens"}
        ),
    ),
    "a model has `permission`": Difference(
        None,
        200,
        200,
        "/v1/models",
        lambda theirs, ours: (
            theirs["data"][0].keys() - ours["data"][0].keys() == {"permission"}
            and ours["data"][0].keys() - theirs["data"][0].keys()
            == {"dimensions", "tasks", "live_workers"}
        ),
    ),
    "`/v1/models/{model}` is not there": Difference(None, 404, 200, "/v1/models/minilm"),
    "an error has the status as its `code`, and often no `param`": Difference(
        {"input": "a", "dimensions": 64},
        400,
        400,
        shows=lambda theirs, ours: (
            (error(theirs)["code"], error(theirs)["param"]) == (400, None)
            and (error(ours)["code"], error(ours)["param"]) == ("invalid_argument", "dimensions")
        ),
    ),
    'an unknown route is `{"detail": ...}`': Difference(
        None,
        404,
        404,
        "/v1/nothing",
        lambda theirs, ours: theirs.keys() == {"detail"} and ours.keys() == {"error"},
    ),
    "an error of validation lists all that a value might have been": Difference(
        {"input": [1.5]},
        400,
        400,
        shows=lambda theirs, ours: (
            "validation errors" in error(theirs)["message"]
            and "\n" not in error(ours)["message"]
            and error(ours)["param"] == "input[0]"
        ),
    ),
    "an unknown model is told": Difference(
        {"input": "a", "model": "nobody"},
        404,
        404,
        shows=lambda theirs, ours: (
            "minilm" not in error(theirs)["message"] and "'minilm'" in error(ours)["message"]
        ),
    ),
    "`model` may be left out": Difference({"input": "a", "model": None}, 200, 400),
    "`null` for `encoding_format` is refused": Difference(
        {"input": "a", "encoding_format": None}, 400, 200
    ),
    "`user` must be a text": Difference({"input": "a", "user": 5}, 400, 200),
    "a body needs `content-type: application/json`": Difference(
        b'{"model": "minilm", "input": "a"}', 400, 200
    ),
    "a number or a switch may be a text": Difference(
        {"input": "a", "truncate_prompt_tokens": "16"}, 200, 400
    ),
    "`true` is token id 1": Difference({"input": [True]}, 200, 400),
    "an empty text is embedded as its special tokens": Difference({"input": ["a", ""]}, 200, 400),
    "`dimensions` equal to the native width needs Matryoshka": Difference(
        {"input": "a", "dimensions": 384}, 400, 200
    ),
    "a text may be cut to its special tokens": Difference(
        {"input": "a", "truncate_prompt_tokens": 2}, 200, 400
    ),
    "no limit on inputs": Difference({"input": [[101]] * 2049}, 200, 413),
    "`encoding_format` may be `bytes` or `bytes_only`": Difference(
        {"input": "a", "encoding_format": "bytes_only"}, 200, 400
    ),
    "`embed_dtype` and `endianness`: other numbers in base64": Difference(
        {"input": "a", "encoding_format": "base64", "endianness": "big"}, 200, 400
    ),
    "`use_activation: false`: vectors that are not normalised": Difference(
        {"input": "a", "use_activation": False}, 200, 400
    ),
    "chat messages as input of `/v1/embeddings`": Difference(
        {"messages": [{"role": "user", "content": "a"}]},
        400,
        400,
        shows=lambda theirs, ours: (
            "chat template" in error(theirs)["message"] and error(ours)["param"] == "input"
        ),
    ),
    "`/score`, `/rerank`, `/pooling`, `/classify` without `/v1`": Difference(
        PAIR, 200, 404, "/score"
    ),
    "`/pooling` does what the model was started for": Difference(
        {"input": "a"}, 200, 404, "/pooling"
    ),
    "`/v1/score` takes `data_1` and `data_2`, images too": Difference(
        {"data_1": "a", "data_2": ["b"]}, 200, 400, SCORE
    ),
    "`/v1/rerank` always returns the documents": Difference(
        {**ONE, "return_documents": False},
        200,
        200,
        RERANK,
        lambda theirs, ours: only_one_has("document")(theirs["results"][0], ours["results"][0]),
    ),
    "a document that is returned has `multi_modal`": Difference(
        ONE,
        200,
        200,
        RERANK,
        lambda theirs, ours: only_one_has("multi_modal")(
            theirs["results"][0]["document"], ours["results"][0]["document"]
        ),
    ),
    "documents of `/v1/rerank` are texts": Difference(
        {"query": "a", "documents": [{"text": "b"}]}, 400, 200, RERANK
    ),
}


def test_every_row_of_the_table_is_shown() -> None:
    """The table has these rows, and no others."""
    section = DOCS.partition("## Differences from `vllm serve`")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \| .* \| .* \|$", section, re.MULTILINE)
    heading, _line, *rows = cells
    assert heading == "`vllm serve`"
    assert rows == list(DIFFERENCES)


@pytest.mark.parametrize("row", DIFFERENCES)
def test_a_difference_is_as_the_table_says(servers: Servers, row: str) -> None:
    """Both answer as the row says that they do."""
    shown = DIFFERENCES[row]
    theirs, ours = servers.ask(shown.path, shown.body)
    assert (theirs.status_code, ours.status_code) == (shown.theirs, shown.ours), ours.text
    if "json" in theirs.headers["content-type"]:
        assert shown.shows(theirs.json(), ours.json()), (theirs.text, ours.text)
