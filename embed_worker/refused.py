"""Flags that make no sense for a pooling worker, refused before vllm is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorway.flags import BadFlag

_DISAGGREGATION = "an embedding worker has no prefill, decode or encode stage to split off"
_MULTIMODAL = "an embedding worker takes text and token ids; images go to the encoder service"
_BENCHMARK = "benchmarks are run from outside, see bench/"
_GENERATION = "an embedding worker does not generate"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "--kv-transfer-config",
            "--kv-events-config",
            "--ec-transfer-config",
            "--ec-manager-config",
            "--disaggregation-mode",
            "--is-prefill-worker",
            "--is-decode-worker",
            "--multimodal-encode-worker",
            "--multimodal-worker",
            "--route-to-encoder",
        ),
        _DISAGGREGATION,
    ),
    **dict.fromkeys(
        (
            "--limit-mm-per-prompt",
            "--enable-mm-embeds",
            "--media-io-kwargs",
            "--interleave-mm-strings",
            "--skip-mm-profiling",
            "--video-pruning-rate",
            "--video-pruning-method",
            "--allowed-local-media-path",
            "--allowed-media-domains",
            "--enable-tower-connector-lora",
            "--default-mm-loras",
            "--disable-chunked-mm-input",
            "--enable-multimodal",
            "--language-model-only",
        ),
        _MULTIMODAL,
    ),
    **dict.fromkeys(
        (
            "--speculative-config",
            "--spec-method",
            "--spec-model",
            "--spec-tokens",
            "--enable-prompt-embeds",
            "--reasoning-parser",
            "--reasoning-config",
            "--structured-outputs-config",
            "--generation-config",
            "--override-generation-config",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(("--benchmark-mode", "--benchmark", "--profiler-config"), _BENCHMARK),
}
# Every other flag of these families, whatever a later vLLM adds.
_FAMILIES = {"--mm-": _MULTIMODAL, "--benchmark-": _BENCHMARK, "--disaggregation-": _DISAGGREGATION}


class RefusedFlag(BadFlag):
    """A flag that this worker does not take; ``str()`` is one line for people."""

    def __init__(self, flag: str, why: str) -> None:
        super().__init__(f"{flag}: {why}")


def refuse_flags(flags: Sequence[str]) -> None:
    """Raise RefusedFlag for the first flag that is not for a pooling worker.

    Flags are read as vLLM reads them: `_` for `-`, `--flag=value`, and `--flag.key value`.
    A shortened flag is caught by :func:`refuse_arguments` later.
    """
    for index, word in enumerate(flags):
        if not word.startswith("--"):
            continue
        name, _, value = word.partition("=")
        name = "--" + name[2:].partition(".")[0].replace("_", "-")
        if why := _why(name.replace("--no-", "--")):
            raise RefusedFlag(name, why)
        if name == "--runner":
            _check_runner(value or next(iter(flags[index + 1 :]), ""))


def refuse_arguments(parsed: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise RefusedFlag for what reached vLLM's parser by another way.

    That is a shortened flag, or one in a `--config` file: whatever is refused and differs
    from vLLM's default.
    """
    for name, value in parsed.items():
        flag = "--" + name.replace("_", "-")
        if (why := _why(flag)) and value != defaults.get(name):
            raise RefusedFlag(flag, why)
    _check_runner(parsed["runner"])


def _why(name: str) -> str | None:
    family = next((why for start, why in _FAMILIES.items() if name.startswith(start)), None)
    return REFUSED.get(name, family)


def _check_runner(runner: str) -> None:
    if runner not in ("pooling", "auto"):
        raise RefusedFlag(f"--runner {runner}", "an embedding worker runs with --runner pooling")
