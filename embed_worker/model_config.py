"""What the config of a loaded model says, in the worker's words."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

LOG = logging.getLogger(__name__)

# Architectures that give term weights, and the pooling task that gives them.
_SPARSE = {"BertSpladeSparseEmbeddingModel": "embed", "BgeM3EmbeddingModel": "token_classify"}


def tasks(config: Any, supported: Sequence[str]) -> dict[str, Any]:
    """What the model can be asked, and how, as fields of an EngineInfo."""
    offered = {task for task in ("embed", "token_embed") if task in supported}
    known: dict[str, Any] = {"score_type": config.score_type if offered else ""}
    if "classify" in supported:
        # One class is a relevance: that is what a cross-encoder gives.
        offered.add("score" if config.hf_config.num_labels == 1 else "classify")
        known["score_type"] = "cross-encoder"
    elif offered:
        offered.add("score")
    if config.architecture in _SPARSE:
        known["sparse_task"] = _SPARSE[config.architecture]
        offered.add("sparse_embed")
        if known["sparse_task"] == "embed":
            offered = {"sparse_embed"}
    return {"tasks": sorted(offered), **known}


def labels(config: Any) -> list[str]:
    """Names of a classifier's classes."""
    names = getattr(config, "id2label", None) or {}
    return [names[i] for i in sorted(names)]


def tokenizer_json(tokenizer: Any) -> str:
    """A fast tokenizer as JSON, empty for none; raises ValueError for a slow one."""
    if tokenizer is None:
        return ""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("the model has no fast tokenizer; serve it with --skip-tokenizer-init")
    return str(tokenizer.backend_tokenizer.to_str())


def sentence_transformers(model: str, revision: str | None, name: str) -> Any:
    """A file of the sentence-transformers layout, from a folder or the local hub cache."""
    path = cached_file(
        model,
        name,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(path).read_text()) if path else None


def warn_of_default_pooling(config: Any) -> None:
    """Say that nobody said how to pool."""
    LOG.warning(
        "%s has no sentence-transformers pooling config and no --pooler-config is given: "
        "vLLM's default for its architecture is used (%s pooling)",
        config.model,
        config.pooler_config.seq_pooling_type,
    )
