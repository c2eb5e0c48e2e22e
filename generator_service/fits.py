"""Which models can be given rows in the place of tokens."""

from __future__ import annotations

from typing import Any

from tensorway.flags import BadFlag
from tensorway.positions import are_multi_axis


def check_fits(model: str, config: Any) -> None:
    """Raise BadFlag with the reason, unless the model of that configuration can."""
    if are_multi_axis(config):
        raise BadFlag(
            f"{model} uses rotary positions on several axes: it would lose the layout of "
            "images that come as plain rows"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise BadFlag(f"{model} is an encoder-decoder model; a decoder is needed")
    if config.get_text_config() is not config:
        raise BadFlag(f"{model} is more than a text model ({config.model_type}), which is needed")
