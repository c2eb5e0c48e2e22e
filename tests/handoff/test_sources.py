"""What must not stand in the sources that a request's bytes pass through."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tensorway", "encoder_service", "generator_service")
# Each of them runs what a file says, or can be made to.
FORBIDDEN = {"pickle", "dill", "marshal", "shelve", "joblib", "cloudpickle"}
FORBIDDEN_CALLS = {"torch.load", "np.load", "numpy.load", "eval", "exec"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_unpickles(folder: str) -> None:
    """No pickle, no torch.load, nothing that executes data."""
    found = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    found += [(path.name, n.name) for n in names if n.name in FORBIDDEN]
                case ast.ImportFrom(module=module):
                    found += [(path.name, module)] if module in FORBIDDEN else []
                case ast.Call(func=func) if ast.unparse(func) in FORBIDDEN_CALLS:
                    found.append((path.name, ast.unparse(func)))
    assert found == []
