"""The only file of the worker that imports vllm: its synchronous engine, in process.

``LLMEngine`` without its own processes does the same work as ``AsyncLLM`` at a third to a
half of the time per request (docs/performance.md); we are a process already.
"""

from __future__ import annotations

import os

# Read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# Read when torch is. Threads that spin for milliseconds take the cores from everybody else,
# the front and the router on the same machine first; threads that sleep at once are late for
# the next layer. These spin for a moment (docs/performance.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import vllm
from packaging.version import Version
from prometheus_client import generate_latest
from vllm import EngineArgs, LLMEngine, PoolingParams
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.metrics.loggers import PrometheusStatLogger

from embed_worker import gpu_defaults, model_config, modules
from embed_worker.engine import EngineInfo, Params, Rows
from embed_worker.refused import refuse_arguments
from tensorway.flags import BadFlag

# Texts whose ids, by vLLM's own tokenizer, ours must reproduce.
_PROBES = ("hi", "Tokenizers must agree: Ünïcödé, 東京, 42!", "  two  spaces\nand a line")

_MOST_STEPS_KEPT = 16


class _SharedParams(PoolingParams):  # type: ignore[misc]
    """Parameters that all inputs of all requests like them share.

    vLLM makes a deep copy for each input, a tenth of the time that it needs to queue one;
    it changes nothing in them after the first has been checked.
    """

    def clone(self) -> _SharedParams:
        return self


class _LateMetrics(PrometheusStatLogger):  # type: ignore[misc]
    """vLLM's metrics of each step, recorded once the answers are sent.

    Recording takes a tenth of the time between two steps (docs/performance.md).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: deque[Callable[[], None]] = deque()

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Keep what a step says of itself; of an engine that never rests, only the newest."""
        self._kept.append(partial(super().record, *args, **kwargs))
        if len(self._kept) > _MOST_STEPS_KEPT:
            self.catch_up()

    def catch_up(self) -> bool:
        """Record the oldest that was kept, if any."""
        if self._kept:
            self._kept.popleft()()
        return bool(self._kept)


class VllmEngine:
    """vLLM's pooling runner behind the worker's Engine protocol."""

    def __init__(self, flags: Sequence[str], sharing: int) -> None:
        args = _parse(flags)
        read = cache(partial(model_config.sentence_transformers, args.model, args.revision))
        pooling_given = bool(args.pooler_config and args.pooler_config.seq_pooling_type)
        modules.check(read, pooling_given=pooling_given)
        args.gpu_memory_utilization /= sharing
        self._llm = LLMEngine.from_engine_args(args, stat_loggers=[_LateMetrics])
        loggers = self._llm.logger_manager.stat_loggers if self._llm.logger_manager else []
        self._late = next((own for own in loggers if isinstance(own, _LateMetrics)), None)
        self.info = _info(args, self._llm, read)
        if "embed" in self.info.tasks and not (pooling_given or modules.pooling_modes(read)):
            model_config.warn_of_default_pooling(self._llm.model_config)

    def add(self, key: str, ids: Sequence[int], params: Params, second: int | None) -> None:
        """Queue one input."""
        self._llm.add_request(key, tokens_input(list(ids)), _pooling(params, second))

    def step(self) -> list[tuple[str, Rows]]:
        """Run one batch."""
        return [(out.request_id, _rows(out)) for out in self._llm.step() if out.finished]

    def abort(self, keys: list[str]) -> None:
        """Forget inputs."""
        self._llm.abort_request(keys)

    def tidy(self) -> bool:
        """Record the metrics of one step."""
        return self._late is not None and self._late.catch_up()

    def metrics(self) -> bytes:
        """What vLLM itself counts."""
        while self.tidy():
            pass
        return generate_latest()


@lru_cache(maxsize=4096)
def _pooling(params: Params, second: int | None) -> PoolingParams:
    extra = None if second is None else {"compressed_token_type_ids": second}
    return _SharedParams(task=params.task, dimensions=params.dimensions, extra_kwargs=extra)


def _parse(flags: Sequence[str]) -> EngineArgs:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="tensorway-embed-worker"))
    parser.add_argument("model_tag", nargs="?", help="The model, as `vllm serve` takes it.")
    parsed = parser.parse_args(list(flags))
    if parsed.model_tag is None and parsed.model == parser.get_default("model"):
        raise BadFlag("MODEL: expected a model's folder or hub name, got none")
    parsed.model = parsed.model_tag or parsed.model
    refuse_arguments(vars(parsed), vars(parser.parse_args([])))
    args = EngineArgs.from_cli_args(parsed)
    if args.pooler_config and args.pooler_config.enable_chunked_processing:
        raise BadFlag("--pooler-config enable_chunked_processing: an input is never split here")
    args.runner = "pooling"
    if args.tensor_parallel_size == args.pipeline_parallel_size == 1:
        args.distributed_executor_backend = args.distributed_executor_backend or "uni"
    if current_platform.is_cuda():
        gpu_defaults.fit(args)
    return args


def _info(args: EngineArgs, llm: LLMEngine, read: modules.Read) -> EngineInfo:
    config, pooler = llm.model_config, llm.model_config.pooler_config
    scheduler = llm.vllm_config.scheduler_config
    tokenizer = None if config.skip_tokenizer_init else llm.get_tokenizer()
    supported = llm.get_supported_tasks()
    return EngineInfo(
        model_names=_names(args),
        root=config.model,
        dtype=str(config.dtype).removeprefix("torch."),
        dimensions=pooler.dimensions or _width(llm, supported),
        vocab_size=int(config.get_vocab_size()),
        max_model_len=_longest(llm),
        max_num_seqs=int(scheduler.max_num_seqs),
        max_num_batched_tokens=int(scheduler.max_num_batched_tokens),
        on_gpu=not current_platform.is_cpu(),
        step_tokens=gpu_defaults.STEP_TOKENS if scheduler.async_scheduling else None,
        **model_config.tasks(config, supported),
        is_matryoshka=bool(config.is_matryoshka),
        matryoshka_dimensions=list(config.matryoshka_dimensions or []),
        normalized=pooler.use_activation is not False,
        labels=model_config.labels(config.hf_config),
        prompts=modules.prompts(read),
        tokenizer=model_config.tokenizer_json(tokenizer),
        truncation_side=getattr(tokenizer, "truncation_side", "right"),
        lowercase=bool((config.encoder_config or {}).get("do_lower_case")),
        probe_ids={text: tokenizer(text)["input_ids"] for text in _PROBES} if tokenizer else {},
    )


def _width(llm: LLMEngine, supported: Sequence[str]) -> int:
    """Numbers in a vector.

    A late-interaction model projects its tokens to a width that only its weights tell, and
    vLLM's config gives that of the model below: so it is asked for a vector.
    """
    if "embed" in supported or "token_embed" not in supported:
        return int(llm.model_config.embedding_size)
    llm.add_request("width", tokens_input([0]), _pooling(Params("token_embed"), None))
    while not (outputs := llm.step()):
        pass
    return int(outputs[0].outputs.data.shape[-1])


def _longest(llm: LLMEngine) -> int:
    """The longest input that is safe to give to vLLM.

    Up to 0.26 a prompt of exactly the maximum that is cut into chunks waits for ever, and
    everything behind it: the scheduler keeps a place for a generated token
    (https://github.com/vllm-project/vllm/issues/29496; seen on 0.26, gone on 0.32).
    """
    chunked = llm.vllm_config.scheduler_config.enable_chunked_prefill
    waits = chunked and Version(vllm.__version__) < Version("0.32")
    return int(llm.model_config.max_model_len) - waits


def _names(args: EngineArgs) -> list[str]:
    names = args.served_model_name or args.model
    return [names] if isinstance(names, str) else list(names)


def _rows(output: Any) -> Rows:
    rows = output.outputs.data.float().numpy()
    return np.atleast_2d(rows) if rows.ndim else rows.reshape(1, 1)
