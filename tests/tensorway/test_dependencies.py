"""Every dependency has its reason written down, and its exact version pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIRED = [
    *PROJECT["project"]["dependencies"],
    *(name for extra in EXTRAS.values() for name in extra),
    *PROJECT["dependency-groups"]["dev"],
]
NAMES = sorted({re.match(r"[\w.-]+", requirement)[0] for requirement in REQUIRED})


@pytest.mark.parametrize("name", NAMES)
def test_reason_is_written_down(name: str) -> None:
    """A dependency has its line in docs/dependencies.md."""
    assert f"`{name}`" in (ROOT / "docs/dependencies.md").read_text()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vllm"])
def test_version_is_pinned(name: str) -> None:
    """A dependency has its exact version in constraints.txt."""
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    assert f"\n{name.lower().replace('_', '-')}==" in pins
