"""A deterministic engine without a model, for tests and for trying the services out.

A vector depends on the token ids and nothing else. A few flags make it slow or faulty in
the ways that real engines are.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from embed_worker.engine import EngineInfo, Params, Rows

VOCAB_SIZE = 1024
_CLS, _SEP = 1, 2
_LATE = ["score", "token_embed"]


def vector(ids: Sequence[int], width: int) -> Rows:
    """The unit vector of a token sequence, [width] float32."""
    seed = np.random.SeedSequence([len(ids), *ids])
    values = np.random.default_rng(seed).standard_normal(width)
    return (values / np.linalg.norm(values)).astype(np.float32)


class FakeEngine:
    """Answers in the order of arrival, `--max-num-seqs` inputs a step."""

    def __init__(self, flags: Sequence[str], sharing: int) -> None:
        del sharing
        self._options, _ = _flags().parse_known_args(list(flags))
        options = self._options
        self._queue: dict[str, tuple[Sequence[int], Params]] = {}
        time.sleep(options.load_seconds)
        self.info = EngineInfo(
            model_names=options.served_model_name or [options.model],
            root=options.model,
            dtype="float32",
            dimensions=options.dimensions,
            vocab_size=VOCAB_SIZE,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            on_gpu=options.on_gpu,
            step_tokens=options.step_tokens,
            tasks=_LATE if options.late_interaction else ["embed", *_LATE],
            score_type="late-interaction" if options.late_interaction else "bi-encoder",
            is_matryoshka=options.matryoshka,
            prompts={"query": "query: ", "document": "document: "},
            tokenizer=_tokenizer().to_str(),
            truncation_side=options.truncation_side,
        )

    def add(self, key: str, ids: Sequence[int], params: Params, second: int | None) -> None:
        """Queue one input."""
        del second
        self._queue[key] = (ids, params)

    def step(self) -> list[tuple[str, Rows]]:
        """Answer the oldest inputs."""
        time.sleep(self._options.step_seconds)
        keys, tokens = list(self._queue)[: self.info.max_num_seqs], 0
        finished: list[tuple[str, Rows]] = []
        for key in keys:
            tokens += len(self._queue[key][0])
            if finished and tokens > self.info.max_num_batched_tokens:
                break
            finished.append((key, self._rows(*self._queue.pop(key))))
        return finished

    def abort(self, keys: list[str]) -> None:
        """Forget inputs."""
        for key in keys:
            self._queue.pop(key, None)

    def tidy(self) -> bool:
        """Nothing can wait."""
        return False

    def metrics(self) -> bytes:
        """One gauge, so that there is something to pass on."""
        return b"# TYPE fake_queue gauge\nfake_queue %d\n" % len(self._queue)

    def _rows(self, ids: Sequence[int], params: Params) -> Rows:
        if self._options.poison_id in ids:
            os._exit(7)
        each_token = params.task == "token_embed" or self._options.token_states
        sequences = [[i] for i in ids] if each_token else [ids]
        rows = np.stack([vector(own, self.info.dimensions) for own in sequences])
        if params.dimensions is not None:
            rows = rows[:, : params.dimensions]
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        if self._options.nan_id in ids:
            rows[-1, 0] = np.nan
        return rows


def _tokenizer() -> Tokenizer:
    """Words to ids, by their bytes, between two special tokens as BERT has them."""
    vocab = {"[UNK]": 0, "[CLS]": _CLS, "[SEP]": _SEP}
    vocab |= {chr(code): code for code in range(3, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", _SEP), ("[CLS]", _CLS))
    return tokenizer


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="fake", allow_abbrev=False)
    flags.add_argument("model", nargs="?", default="fake")
    flags.add_argument("--served-model-name", nargs="+", action="extend")
    flags.add_argument("--dimensions", type=int, default=8)
    flags.add_argument("--max-model-len", type=int, default=64)
    flags.add_argument("--max-num-seqs", type=int, default=16)
    flags.add_argument("--max-num-batched-tokens", type=int, default=8192)
    flags.add_argument("--step-tokens", type=int, help="Tokens given before each step.")
    flags.add_argument("--on-gpu", action="store_true", help="Polls as an engine on a GPU does.")
    flags.add_argument("--truncation-side", default="right")
    flags.add_argument("--matryoshka", action="store_true")
    flags.add_argument("--late-interaction", action="store_true", help="Vectors of tokens only.")
    flags.add_argument("--step-seconds", type=float, default=0.0, help="Time of a step.")
    flags.add_argument("--load-seconds", type=float, default=0.0, help="Time of loading.")
    flags.add_argument("--poison-id", type=int, default=-1, help="Token id that kills.")
    flags.add_argument("--nan-id", type=int, default=-1, help="Token id that gives NaN.")
    flags.add_argument(
        "--token-states", action="store_true", help="Answer every token's vector, unasked."
    )
    return flags
