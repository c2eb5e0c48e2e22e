"""A tiny LLaVA whose text part is SmolLM2, so that one engine serves both."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlavaConfig
from transformers import CLIPVisionConfig as Vision
from transformers import LlavaForConditionalGeneration as Llava
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from examples.smollm2 import save

SIDE, PATCH = 32, 8
ROWS = (SIDE // PATCH) ** 2
# A token of SmolLM2 that no text has: "<empty_output>".
IMAGE_TOKEN = 16


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
    """What transformers itself generates, in one process, with the whole model."""

    def __init__(self, folder: Path) -> None:
        self._model = Llava.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = CLIPImageProcessorPil.from_pretrained(folder)

    def generate(self, ids: list[int], images: list[object], count: int) -> list[int]:
        """Greedy tokens; `ids` has one placeholder for each image."""
        expanded = [token for one in ids for token in [one] * (ROWS if one == IMAGE_TOKEN else 1)]
        pixels = {}
        if images:
            pixels = {"pixel_values": self._processor(images, return_tensors="pt")["pixel_values"]}
        inputs = torch.tensor([expanded])
        mask = torch.ones_like(inputs)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=inputs,
                attention_mask=mask,
                **pixels,
                max_new_tokens=count,
                do_sample=False,
            )
        return output[0, len(expanded) :].tolist()

    def next_logprobs(self, ids: list[int], rows: dict[int, torch.Tensor]) -> torch.Tensor:
        """Log probabilities of the next token, with some positions given as rows."""
        embeds = self._model.get_input_embeddings()(torch.tensor([ids])).clone()
        for place, row in rows.items():
            embeds[0, place] = row
        with torch.inference_mode():
            logits = self._model(inputs_embeds=embeds).logits[0, -1]
        return torch.log_softmax(logits.float(), -1)


if __name__ == "__main__":
    smollm2 = save(Path(sys.argv[1]))
    save_llava(smollm2, smollm2.parent / "llava")
