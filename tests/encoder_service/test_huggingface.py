"""The Hugging Face backend: generated checkpoints of each family, rows as transformers has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

SIDE, HIDDEN = 32, 64
TEXT = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 200,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
}
# Rows of an image: (32 / 8)² patches; the Idefics3 family makes one of each 2² of them.
ROWS = {"llava": 16, "idefics3": 4, "smolvlm": 4}


def config(family: str) -> Any:
    """The configuration of a tiny model."""
    from transformers import AutoConfig

    settings = {"text_config": TEXT, "vision_config": VISION, "image_token_id": 190}
    if family == "llava":
        vision = {"model_type": "clip_vision_model", **VISION}
        settings |= {"vision_feature_layer": -1, "vision_config": vision}
    else:
        settings |= {"scale_factor": 2}
    return AutoConfig.for_model(family, **settings)


def save(family: str, folder: Path) -> Any:
    """A tiny model with random weights, in a folder with its image processor."""
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config(family)).eval()
    model.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    edge = {"longest_edge": SIDE}
    processor = {
        "llava": lambda: CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size),
        "idefics3": lambda: Idefics3ImageProcessorPil(size=edge, max_image_size=edge),
        "smolvlm": lambda: SmolVLMImageProcessorPil(size=edge, max_image_size=edge),
    }[family]()
    processor.save_pretrained(folder)
    return model, processor


def noise(seed: int, height: int = 40, width: int = 50) -> Any:
    """An image."""
    from tensorway.images import Image

    return Image(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


@pytest.mark.parametrize("family", ROWS)
def test_rows_are_those_of_the_whole_model(family: str, tmp_path: Path) -> None:
    """Vision tower and projector alone give what the model gives, image by image."""
    import torch

    from encoder_service.huggingface import HuggingFaceEncoder

    model, processor = save(family, tmp_path)
    backend = HuggingFaceEncoder()
    backend.build(str(tmp_path))
    images = [noise(0), noise(1), noise(2, 60, 30)]
    found = backend.forward_batch([backend.preprocess(image).item for image in images])
    options = {} if family == "llava" else {"do_image_splitting": False}
    for image, rows in zip(images, found, strict=True):
        inputs = processor(images=image.pixels, return_tensors="pt", **options)
        known = {name: value for name, value in inputs.items() if name.startswith("pixel_")}
        with torch.inference_mode():
            expected = model.get_image_features(**known).pooler_output[0]
        assert rows.shape == (ROWS[family], HIDDEN)
        assert torch.allclose(rows, expected, atol=1e-5)
    assert backend.image_token_id == 190


def test_the_text_model_is_left_out(tmp_path: Path) -> None:
    """Less than the whole is kept in memory."""
    from encoder_service.huggingface import HuggingFaceEncoder

    model, _ = save("llava", tmp_path)
    backend = HuggingFaceEncoder()
    backend.build(str(tmp_path))
    kept = {name.split(".")[0] for name, _ in backend._model.named_parameters()}
    assert kept == {"vision_tower", "multi_modal_projector"}
    assert len(list(backend._model.parameters())) < len(list(model.parameters()))


def test_settings_of_the_processor_are_part_of_the_identity(tmp_path: Path) -> None:
    """Another size of images is another encoder to every cache."""
    from encoder_service.huggingface import HuggingFaceEncoder

    save("llava", tmp_path)
    backends = [HuggingFaceEncoder() for _ in range(3)]
    for index, backend in enumerate(backends):
        if index == 2:
            file = tmp_path / "preprocessor_config.json"
            file.write_text(file.read_text().replace('"shortest_edge": 32', '"shortest_edge": 48'))
        backend.build(str(tmp_path))
    first, second, third = (backend.preprocessing for backend in backends)
    assert first == second != third


def test_options_are_refused_by_name() -> None:
    """There are none, and the error says so instead of ignoring them."""
    from encoder_service.huggingface import HuggingFaceEncoder
    from tensorway.images import Image

    image = Image(noise(0).pixels, {"detail": "high"})
    with pytest.raises(ValueError, match=r"options: this encoder takes none, got \['detail'\]"):
        HuggingFaceEncoder().preprocess(image)


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("qwen2_vl", "rotary positions on several axes"),
        ("llava_next", "expected a model of llava, idefics3, smolvlm, .* got llava_next"),
        ("bert", "got bert"),
    ],
)
def test_models_that_rows_are_not_enough_for_are_refused(family: str, match: str) -> None:
    """The reason is told at the start, not in worse answers later."""
    from transformers import AutoConfig

    from encoder_service.huggingface import check_family

    settings = {}
    if family == "qwen2_vl":
        rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 10000.0}
        settings = {"text_config": {"rope_parameters": rope}}
    with pytest.raises(ValueError, match=match):
        check_family(AutoConfig.for_model(family, **settings))
