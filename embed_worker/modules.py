"""What a sentence-transformers model folder asks for, and what of it vLLM does not do; pure.

vLLM falls back to another pooling, or passes a module over, without an error: the vectors
then look right and find the wrong texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tensorway.flags import BadFlag

LOG = logging.getLogger(__name__)

Read = Callable[[str], Any]
"""Gives the JSON of a file of the folder, or None when there is none."""

_POOLING_MODES = {"cls", "cls_token", "mean", "mean_tokens", "lasttoken"}
# By the last part of their type; the sparse ones belong to models that vLLM knows as a whole.
_APPLIED = {
    *("Transformer", "Pooling", "Dense", "Normalize", "Dropout"),
    *("MLMTransformer", "SpladePooling"),
}


def check(read: Read, *, pooling_given: bool) -> None:
    """Raise BadFlag for a pooling that vLLM does not have; warn of modules that it skips."""
    for module in read("modules.json") or []:
        if (kind := _kind(module)) not in _APPLIED:
            LOG.warning("vLLM does not apply the model's module %s: vectors may differ", kind)
    modes = pooling_modes(read)
    if not pooling_given and modes and (len(modes) > 1 or not _POOLING_MODES.issuperset(modes)):
        asked = " and ".join(modes)
        raise BadFlag(
            f"MODEL: its pooling is {asked}, vLLM has cls, mean and lasttoken; "
            '--pooler-config \'{"pooling_type": "MEAN"}\' takes another one'
        )


def pooling_modes(read: Read) -> list[str]:
    """The folder's modes of pooling, none when it says nothing; several are concatenated."""
    config = _pooling(read)
    named = config.get("pooling_mode", [])
    flags = [key for key, value in config.items() if value is True]
    older = [key.removeprefix("pooling_mode_") for key in flags if key.startswith("pooling_mode_")]
    return ([named] if isinstance(named, str) else list(named)) or older


def prompts(read: Read) -> dict[str, str]:
    """The model's named prompts."""
    named: dict[str, str] = (read("config_sentence_transformers.json") or {}).get("prompts") or {}
    if named and _pooling(read).get("include_prompt") is False:
        LOG.warning("the model leaves prompts out of its pooling, vLLM cannot: none is offered")
        return {}
    return named


def _pooling(read: Read) -> Mapping[str, Any]:
    modules = read("modules.json") or []
    path = next((m["path"] for m in modules if _kind(m) == "Pooling"), None)
    return {} if path is None else read(f"{path}/config.json") or {}


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]
