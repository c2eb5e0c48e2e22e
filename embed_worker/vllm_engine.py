"""The only file of the worker that imports vllm: its synchronous engine, in process.

``LLMEngine`` without its own processes does the same work as ``AsyncLLM`` at a third to a
half of the time per request (docs/performance.md); we are a process already.
"""

from __future__ import annotations

import os

# Read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import generate_latest
from transformers.utils import cached_file
from vllm import EngineArgs, LLMEngine, PoolingParams
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from embed_worker.engine import EngineInfo, Params, Rows
from embed_worker.refused import refuse_arguments

LOG = logging.getLogger("embed_worker.vllm")

# Texts whose ids, by vLLM's own tokenizer, ours must reproduce.
_PROBES = ("hi", "Tokenizers must agree: Ünïcödé, 東京, 42!", "  two  spaces\nand a line")

# A step of 64 ki tokens keeps an H200 busy (docs/performance.md). vLLM's own defaults
# are made for generation, where a step this long would stall other requests' tokens.
_GPU_LIMITS = {"max_num_seqs": 1024, "max_num_batched_tokens": 65536}
# Architectures that give term weights, and the pooling task that gives them.
_SPARSE = {"BertSpladeSparseEmbeddingModel": "embed", "BgeM3EmbeddingModel": "token_classify"}


class VllmEngine:
    """vLLM's pooling runner behind the worker's Engine protocol."""

    def __init__(self, flags: Sequence[str]) -> None:
        args = _parse(flags)
        self._llm = LLMEngine.from_engine_args(args)
        self.info = _info(args, self._llm)

    def add(self, key: str, ids: Sequence[int], params: Params, second: int | None) -> None:
        """Queue one input."""
        pooling = PoolingParams(task=params.task, dimensions=params.dimensions)
        if second is not None:
            pooling.extra_kwargs = {"compressed_token_type_ids": second}
        self._llm.add_request(key, tokens_input(list(ids)), pooling)

    def step(self) -> list[tuple[str, Rows]]:
        """Run one batch."""
        return [(out.request_id, _rows(out)) for out in self._llm.step() if out.finished]

    def abort(self, keys: list[str]) -> None:
        """Forget inputs."""
        self._llm.abort_request(keys)

    def metrics(self) -> bytes:
        """What vLLM itself counts."""
        return generate_latest()


def _parse(flags: Sequence[str]) -> EngineArgs:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="tensorway-embed-worker"))
    parser.add_argument("model_tag", nargs="?", help="The model, as `vllm serve` takes it.")
    parsed = parser.parse_args(list(flags))
    parsed.model = parsed.model_tag or parsed.model
    refuse_arguments(vars(parsed), vars(parser.parse_args([])))
    args = EngineArgs.from_cli_args(parsed)
    args.runner = "pooling"
    if args.tensor_parallel_size == args.pipeline_parallel_size == 1:
        args.distributed_executor_backend = args.distributed_executor_backend or "uni"
    if current_platform.is_cuda():
        for name, value in _GPU_LIMITS.items():
            setattr(args, name, getattr(args, name) or value)
    return args


def _info(args: EngineArgs, llm: LLMEngine) -> EngineInfo:
    config, pooler = llm.model_config, llm.model_config.pooler_config
    scheduler = llm.vllm_config.scheduler_config
    tokenizer = None if config.skip_tokenizer_init else llm.get_tokenizer()
    folder = _sentence_transformers(config.model, "config_sentence_transformers.json")
    if _sentence_transformers(config.model, "modules.json") is None and not args.pooler_config:
        LOG.warning(
            "%s has no sentence-transformers pooling config and no --pooler-config is given: "
            "vLLM's default for its architecture is used (%s pooling)",
            config.model,
            pooler.seq_pooling_type,
        )
    return EngineInfo(
        model_names=_names(args),
        root=config.model,
        dtype=str(config.dtype).removeprefix("torch."),
        dimensions=int(config.embedding_size),
        vocab_size=int(config.get_vocab_size()),
        max_model_len=int(config.max_model_len),
        max_num_seqs=int(scheduler.max_num_seqs),
        max_num_batched_tokens=int(scheduler.max_num_batched_tokens),
        **_tasks(config, llm.get_supported_tasks()),
        is_matryoshka=bool(config.is_matryoshka),
        matryoshka_dimensions=list(config.matryoshka_dimensions or []),
        normalized=pooler.use_activation is not False,
        labels=_labels(config.hf_config),
        prompts=(folder or {}).get("prompts", {}),
        tokenizer=_tokenizer_json(tokenizer),
        truncation_side=getattr(tokenizer, "truncation_side", "right"),
        lowercase=bool((config.encoder_config or {}).get("do_lower_case")),
        probe_ids={text: tokenizer(text)["input_ids"] for text in _PROBES} if tokenizer else {},
    )


def _tasks(config: Any, supported: Sequence[str]) -> dict[str, Any]:
    """What the model can be asked, in our words, and how."""
    tasks = {task for task in ("embed", "token_embed") if task in supported}
    known: dict[str, Any] = {"score_type": config.score_type if tasks else ""}
    if "classify" in supported:
        # One class is a relevance: that is what a cross-encoder gives.
        tasks.add("score" if config.hf_config.num_labels == 1 else "classify")
        known["score_type"] = "cross-encoder"
    elif tasks:
        tasks.add("score")
    if config.architecture in _SPARSE:
        known["sparse_task"] = _SPARSE[config.architecture]
        tasks.add("sparse_embed")
        if known["sparse_task"] == "embed":
            tasks = {"sparse_embed"}
    return {"tasks": sorted(tasks), **known}


def _names(args: EngineArgs) -> list[str]:
    names = args.served_model_name or args.model
    return [names] if isinstance(names, str) else list(names)


def _tokenizer_json(tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("the model has no fast tokenizer; serve it with --skip-tokenizer-init")
    return str(tokenizer.backend_tokenizer.to_str())


def _labels(config: Any) -> list[str]:
    names = getattr(config, "id2label", None) or {}
    return [names[i] for i in sorted(names)]


def _sentence_transformers(model: str, name: str) -> dict[str, Any] | None:
    """A file of the sentence-transformers layout, from a folder or the local hub cache."""
    path = cached_file(
        model,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(path).read_text()) if path else None


def _rows(output: Any) -> Rows:
    rows = output.outputs.data.float().numpy()
    return np.atleast_2d(rows) if rows.ndim else rows.reshape(1, 1)
