"""The generator as a process: what it refuses before it loads anything."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from generator_service.fits import check_fits
from tensorway.flags import BadFlag

ROPE = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 10000.0}
CONFIGS = {
    "several axes": (
        {"model_type": "qwen2_vl", "text_config": {"rope_parameters": ROPE}},
        "uses rotary positions on several axes",
    ),
    "more than text": ({"model_type": "llava"}, r"more than a text model \(llava\)"),
    "encoder-decoder": ({"model_type": "bart"}, "is an encoder-decoder model"),
}


async def started(*flags: str) -> tuple[int, str]:
    """Exit status and messages of a generator that does not come up."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "generator_service", "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    _, errors = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("settings", "message"), CONFIGS.values(), ids=CONFIGS)
def test_models_that_rows_cannot_be_given_to_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    """One line with the reason, instead of worse answers later."""
    from transformers import AutoConfig

    check_fits("llama", AutoConfig.for_model("llama"))
    with pytest.raises(BadFlag, match=message):
        check_fits("model", AutoConfig.for_model(**settings))


@pytest.mark.vllm
async def test_a_model_that_does_not_fit_is_never_loaded(tmp_path: Path) -> None:
    """The process ends with status 2, and a last line with the reason."""
    settings, message = CONFIGS["several axes"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    status, errors = await started(str(tmp_path))
    assert status == 2, errors
    assert message in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--backend", "no.such:Class"), "--backend: backend: expected package.module:Class"),
        (("--max-requests", "0"), "--max-requests"),
        (("--require-encoder", "@r1"), "--require-encoder: expected a model"),
    ],
)
async def test_mistakes_of_our_own_flags_cost_no_load(flags: tuple[str, ...], message: str) -> None:
    """They are found before vLLM is imported."""
    status, errors = await started("nowhere", *flags)
    assert status == 2, errors
    assert message in errors
