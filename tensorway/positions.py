"""Positions of a model, read from its Hugging Face configuration."""

from __future__ import annotations

from typing import Any


def are_multi_axis(config: Any) -> bool:
    """Whether rotary positions have several axes, so that plain rows lose an image's layout."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return "mrope_section" in rope
