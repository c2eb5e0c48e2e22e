"""A tiny LLaVA whose text part is SmolLM2, so that one engine serves both.

Run in a process of its own, as ``python -m tests.handoff.checkpoints FOLDER``: it prints a
line when both models are there, and ends when the answers of transformers are there, too.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForCausalLM, LlavaConfig
from transformers import CLIPVisionConfig as Vision
from transformers import LlavaForConditionalGeneration as Llava
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from examples.smollm2 import save
from tests.handoff.prompts import IMAGE_TOKEN, PROMPTS, TAIL, ZEROS, picture

SIDE, PATCH = 32, 8
ROWS = (SIDE // PATCH) ** 2


def save_llava(text: Path, folder: Path) -> Path:
    """Random eyes on a text model that is kept as it is."""
    torch.manual_seed(0)
    vision = Vision(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=AutoConfig.from_pretrained(text),
        image_token_id=IMAGE_TOKEN,
        vision_feature_layer=-1,
    )
    model = Llava(config).to(torch.float32)
    words = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    model.model.language_model.load_state_dict(words.model.state_dict())
    model.lm_head.load_state_dict(words.lm_head.state_dict())
    # Rows as large as the text's embeddings; random ones are a third of that.
    model.model.multi_modal_projector.linear_2.weight.data *= 3
    model.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)
    return folder


class Reference:
    """What transformers itself generates, with the whole model in one process."""

    def __init__(self, folder: Path) -> None:
        self._model = Llava.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = CLIPImageProcessorPil.from_pretrained(folder)

    def answers(self) -> dict[str, np.ndarray]:
        """Greedy tokens of all prompts, and the next token after rows of zeros."""
        found = {name: np.array(self._generate(ids)) for name, ids in PROMPTS.items()}
        for name, places in (("mask_many", range(1, ZEROS + 1)), ("mask_one", [ZEROS + 1])):
            logprobs = self._next_logprobs([1, *[0] * (ZEROS + 1), *TAIL], list(places))
            found[f"{name}_token"] = np.array(int(logprobs.argmax()))
            found[f"{name}_logprob"] = np.array(float(logprobs.max()))
        return found

    def _generate(self, ids: list[int]) -> list[int]:
        images = [Image.open(io.BytesIO(picture(i))) for i in range(ids.count(IMAGE_TOKEN))]
        expanded = [token for one in ids for token in [one] * (ROWS if one == IMAGE_TOKEN else 1)]
        pixels = self._processor(images, return_tensors="pt") if images else {}
        inputs = torch.tensor([expanded])
        output = self._model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            **pixels,
            max_new_tokens=12,
            do_sample=False,
        )
        return output[0, len(expanded) :].tolist()

    def _next_logprobs(self, ids: list[int], zeros: list[int]) -> torch.Tensor:
        embeds = self._model.get_input_embeddings()(torch.tensor([ids])).clone()
        embeds[0, zeros] = 0
        logits = self._model(inputs_embeds=embeds).logits[0, -1]
        return torch.log_softmax(logits.float(), -1)


if __name__ == "__main__":
    models = Path(sys.argv[1])
    save_llava(save(models / "smollm2"), models / "llava")
    sys.stdout.write("saved\n")
    sys.stdout.flush()
    with torch.inference_mode():
        np.savez(models / "answers.npz", **Reference(models / "llava").answers())
