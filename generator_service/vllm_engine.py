"""The only file of the generator that imports vllm: AsyncLLM with prompt embeddings."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from multiprocessing import active_children
from typing import Any

import ml_dtypes
import numpy as np
import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs import embeds_input, tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.transformers_utils.config import get_config
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from generator_service.engine import Candidate, EngineDied, EngineInfo, Params, Piece
from generator_service.fits import check_fits
from generator_service.guard import guard
from tensorway.errors import InvalidArgument, Unavailable
from tensorway.handoff.elements import Rows, bits
from tensorway.prompt import ModelShape, Prompt

_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
}
_TORCH = {dtype: kind for kind, dtype in _DTYPES.items()}
_FINISH = {"length": "length"}
_SIGNED = {2: np.int16, 4: np.int32}


class VllmEngine:
    """A text-only model on vLLM behind the service's Engine protocol."""

    def __init__(self, flags: Sequence[str], timeout: float) -> None:
        args = _parse(flags)
        check_fits(args.model, get_config(args.model, args.trust_remote_code, args.revision))
        config = args.create_engine_config()
        self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=args.disable_log_stats)
        self._guard = guard([child.pid for child in active_children() if child.pid])
        self._timeout = timeout
        self._running = 0
        self._progress = time.monotonic()
        # The engine may have cut the length to what fits the memory.
        self.info = _info(args, self._llm.model_config)

    async def generate(self, prompt: Prompt, params: Params) -> AsyncGenerator[Piece, None]:
        """The answer; closing the generator aborts the request in the engine."""
        if not self._running:
            self._progress = time.monotonic()
        self._running += 1
        try:
            sampling = _sampling(params)
            async for output in self._llm.generate(_input(prompt), sampling, uuid.uuid4().hex):
                self._progress = time.monotonic()
                yield _piece(output.outputs[0])
        except EngineDeadError:
            raise Unavailable("the engine died") from None
        except (ValueError, VLLMValidationError) as error:
            raise InvalidArgument(str(error)) from error
        finally:
            self._running -= 1

    def check(self) -> None:
        """Raise EngineDied when the engine is dead, or has work and makes no progress."""
        if self._llm.errored:
            raise EngineDied("the engine died; its error is above")
        silent = time.monotonic() - self._progress
        if self._running and silent > self._timeout:
            raise EngineDied(f"the engine has work and made no token for {silent:.0f} s")

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()
        self._guard.communicate()


def _parse(flags: Sequence[str]) -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="tensorway-generator"))
    parser.add_argument("model_tag", nargs="?", help="The model, as `vllm serve` takes it.")
    parsed = parser.parse_args(list(flags))
    parsed.model = parsed.model_tag or parsed.model
    args = AsyncEngineArgs.from_cli_args(parsed)
    args.enable_prompt_embeds = True
    args.runner = "generate"
    if args.tensor_parallel_size == args.pipeline_parallel_size == 1:
        # One process less between a request and the model.
        args.distributed_executor_backend = args.distributed_executor_backend or "uni"
    return args


def _info(args: AsyncEngineArgs, config: Any) -> EngineInfo:
    names = args.served_model_name or args.model
    return EngineInfo(
        names=(names,) if isinstance(names, str) else tuple(names),
        root=config.model,
        shape=ModelShape(
            hidden_size=int(config.get_hidden_size()),
            vocab_size=int(config.get_vocab_size()),
            max_model_len=int(config.max_model_len),
            dtype=_DTYPES[config.dtype],
        ),
        max_logprobs=_max_logprobs(config),
        has_tokenizer=not config.skip_tokenizer_init,
    )


def _max_logprobs(config: Any) -> int:
    # -1 is vLLM's word for no limit.
    return int(config.get_vocab_size() if config.max_logprobs < 0 else config.max_logprobs)


def _input(prompt: Prompt) -> Any:
    if prompt.rows is None or prompt.is_token is None:
        return tokens_input(prompt.token_ids.tolist())
    return embeds_input(
        prompt_embeds=_tensor(prompt.rows),
        prompt_token_ids=prompt.token_ids.tolist(),
        is_token_ids=prompt.is_token.tolist(),
        cache_salt=prompt.cache_salt or None,
    )


def _tensor(rows: Rows) -> torch.Tensor:
    # Through integers, because torch knows NumPy's types only.
    numbers = bits(rows).view(_SIGNED[rows.dtype.itemsize])
    return torch.from_numpy(numbers).view(_TORCH[rows.dtype])


def _sampling(params: Params) -> SamplingParams:
    return SamplingParams(
        **params.sampling, detokenize=params.text, output_kind=RequestOutputKind.DELTA
    )


def _piece(output: Any) -> Piece:
    if output.finish_reason in ("abort", "error"):
        raise Unavailable("the engine ended the request")
    return Piece(
        token_ids=list(output.token_ids),
        text=output.text or "",
        logprobs=[
            _candidates(place, token)
            for place, token in zip(output.logprobs or (), output.token_ids, strict=False)
        ],
        finish_reason=_FINISH.get(output.finish_reason, "stop") if output.finish_reason else None,
        stop_reason="" if output.stop_reason is None else str(output.stop_reason),
    )


def _candidates(place: dict[int, Any], chosen: int) -> list[Candidate]:
    """The chosen token, then the others by rank."""
    found = [Candidate(token, one.logprob, one.rank or 0) for token, one in place.items()]
    return sorted(found, key=lambda one: (one.token_id != chosen, one.rank))
