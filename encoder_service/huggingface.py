"""The only file of the encoder service that imports torch: a Hugging Face checkpoint's eyes.

Of a vision-language model only the vision tower and its projector are kept. It must put
image features into the prompt row by row: the LLaVA and Idefics3 (SmolVLM) families do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoModel

from tensorway.encoder import Preprocessed, VisionEncoderBackend
from tensorway.images import Image
from tensorway.positions import are_multi_axis


class Family(NamedTuple):
    """How models of one kind are made and asked."""

    text: str
    """Name of the part that is left out."""
    options: Mapping[str, Any]
    """Options for the image processor."""


# Splitting an image into tiles puts text between their rows, so it is turned off.
_WHOLE = {"do_image_splitting": False}
FAMILIES = {
    "llava": Family("language_model", {}),
    "idefics3": Family("text_model", _WHOLE),
    "smolvlm": Family("text_model", _WHOLE),
}


class HuggingFaceEncoder(VisionEncoderBackend):
    """Vision tower and projector of a LLaVA, Idefics3 or SmolVLM checkpoint."""

    max_batch_cost = 16
    preprocess_concurrency = 2

    def build(self, model_id: str) -> None:
        """Load from a folder or the hub; ValueError for models that do not fit."""
        config = AutoConfig.from_pretrained(model_id)
        self._family = check_family(config)
        self._processor = AutoImageProcessor.from_pretrained(model_id)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = _eyes(model_id, config, self._family).to(self._device)
        self.image_token_id = int(config.image_token_id)
        self.revision = str(getattr(config, "_commit_hash", None) or "")
        self.preprocessing = _settings(self._processor, self._family)

    def preprocess(self, raw: Image) -> Preprocessed:
        """The pixels as the vision tower wants them."""
        if raw.options:
            raise ValueError(f"options: this encoder takes none, got {sorted(raw.options)}")
        inputs = self._processor(images=raw.pixels, return_tensors="pt", **self._family.options)
        known = ("pixel_values", "pixel_attention_mask")
        return Preprocessed({name: inputs[name] for name in known if name in inputs})

    def forward_batch(self, items: Sequence[dict[str, torch.Tensor]]) -> Sequence[torch.Tensor]:
        """Rows for each image; images of equal size share one pass."""
        if len({item["pixel_values"].shape for item in items}) > 1:
            return [self._forward([item])[0] for item in items]
        return self._forward(items)

    def _forward(self, items: Sequence[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        batch = {
            name: torch.cat([item[name] for item in items]).to(self._device) for name in items[0]
        }
        batch["pixel_values"] = batch["pixel_values"].to(self._model.dtype)
        with torch.inference_mode():
            features = self._model.get_image_features(**batch).pooler_output
        return [rows.cpu() for rows in features]


def check_family(config: Any) -> Family:
    """The model's family; ValueError with the reason when its rows would not be enough."""
    if are_multi_axis(config):
        raise ValueError(
            f"{config.model_type} uses rotary positions on several axes: plain rows would lose "
            "the layout of images"
        )
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"expected a model of {', '.join(FAMILIES)}, whose image features go into the prompt "
            f"row by row, got {config.model_type}"
        )
    return FAMILIES[config.model_type]


def _eyes(model_id: str, config: Any, family: Family) -> Any:
    # Without layers, the text model's weights are not read from the checkpoint.
    config.get_text_config().num_hidden_layers = 0
    model = AutoModel.from_pretrained(model_id, config=config, dtype="auto")
    delattr(model, family.text)
    return model.eval()


def _settings(processor: Any, family: Family) -> str:
    settings = f"{processor.to_json_string()} {sorted(family.options.items())}"
    return f"{type(processor).__name__} {hashlib.sha256(settings.encode()).hexdigest()[:16]}"
