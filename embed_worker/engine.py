"""What the worker needs of an engine, and the messages to and from its process.

The unit of work is the request: one message in, with the token ids of all its inputs in
one flat array, and one message out, with all its rows in one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

# vLLM's pooling tasks.
Task = Literal["embed", "token_embed", "classify", "token_classify"]
Rows = NDArray[np.float32]
Ids = NDArray[np.int32]


class EngineInfo(msgspec.Struct, frozen=True):
    """What is known about a model once it is loaded."""

    model_names: list[str]
    """The served name, then its aliases."""
    root: str
    """Folder or hub name that it was loaded from."""
    dtype: str
    dimensions: int
    """Native width of a vector."""
    vocab_size: int
    max_model_len: int
    """Longest input in tokens, special tokens included."""
    max_num_seqs: int
    """Most inputs in one engine step."""
    max_num_batched_tokens: int
    """Most tokens in one engine step."""
    tasks: list[str]
    """What the model can be asked: embed, token_embed, sparse_embed, classify, score."""
    on_gpu: bool = False
    """Whether the model runs elsewhere than on the cores that the services share."""
    step_tokens: int | None = None
    """Most tokens that the engine is given before a step, unless one input has more.

    Set where a step runs while the engine is given the next one; None: all that it has room for.
    """
    score_type: str = ""
    """How it scores: cross-encoder, bi-encoder or late-interaction."""
    sparse_task: Task = "embed"
    """Pooling task whose rows are term weights: [vocab_size] of an input, or one a token."""
    is_matryoshka: bool = False
    matryoshka_dimensions: list[int] = []
    normalized: bool = True
    """Whether vectors have unit length, by the model's own config."""
    labels: list[str] = []
    """Names of the classes of a classifier."""
    prompts: dict[str, str] = {}
    """Named prompts that are put before a text."""
    tokenizer: str = ""
    """The Hugging Face tokenizer as JSON; empty: only token ids are served."""
    truncation_side: str = "right"
    """Which end of a text is cut, "right" or "left"."""
    lowercase: bool = False
    """Whether the model's sentence-transformers config lower-cases texts."""
    probe_ids: dict[str, list[int]] = {}
    """Texts and the ids that the model library itself makes of them."""


class Params(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to pool; the same for all inputs of a request."""

    task: Task = "embed"
    dimensions: int | None = None


class Work(msgspec.Struct, frozen=True, tag=True):
    """A request.

    Frames after it: int32 token ids, int64 offsets (inputs + 1), and for pairs of texts
    int32 positions at which each second text starts (else empty).
    """

    id: int
    params: Params
    bulk: bool = False


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Drop a request and everything it has in the engine."""

    id: int


class Scrape(msgspec.Struct, frozen=True, tag=True):
    """Ask for the engine's own metrics."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    info: EngineInfo


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a request ended.

    Its two frames follow those of the results before it: float32 rows, and int64 offsets
    (inputs + 1) into them. After an error both are empty.
    """

    id: int
    width: int = 0
    arrived: float = 0.0
    """When it arrived, in monotonic seconds of this machine."""
    queued: float = 0.0
    """Seconds from its arrival until the engine took its first input."""
    ran: float = 0.0
    """Seconds from then until its last input was finished."""
    stepped: float = 0.0
    """Seconds of those that the engine spent in steps; the rest is what surrounds them."""
    error: str = ""


class Step(msgspec.Struct, frozen=True, tag=True):
    """The engine made a step; requests that it completed are in `results`."""

    inputs: int
    tokens: int
    results: list[Result]


class Scraped(msgspec.Struct, frozen=True, tag=True):
    """The engine's own metrics, in Prometheus' text format."""

    text: bytes


ToEngine = Work | Cancel | Scrape
FromEngine = Ready | Step | Scraped


class Engine(Protocol):
    """A synchronous engine, driven by one thread.

    Built by calling it with its flags, and the number of processes that share its GPU.
    """

    info: EngineInfo

    def add(self, key: str, ids: Sequence[int], params: Params, second: int | None) -> None:
        """Queue one input; `second` is where the second text of a pair starts.

        Raises ValueError when the input cannot be taken; nothing is queued then.
        """

    def step(self) -> list[tuple[str, Rows]]:
        """Run one batch; return the rows of finished inputs, [rows, width] each.

        An engine may return before its batch is finished, and give the rows in a later step.
        Whatever it raises leaves the engine unusable.
        """

    def abort(self, keys: list[str]) -> None:
        """Forget inputs, queued or running; unknown keys are ignored."""

    def tidy(self) -> bool:
        """Do a piece of what could wait; whether more is left. Called when there is no work."""

    def metrics(self) -> bytes:
        """The engine's own metrics, in Prometheus' text format."""


ENGINES = {
    "vllm": "embed_worker.vllm_engine:VllmEngine",
    "fake": "embed_worker.fake_engine:FakeEngine",
}
