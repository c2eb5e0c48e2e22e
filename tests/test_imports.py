"""Who may import whom, read from the sources and measured in fresh processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("router", "embed_worker", "encoder_service", "generator_service", "rest_shim")
PACKAGES = ("tensorway", *SERVICES)
HEAVY = ("torch", "vllm", "transformers")
ENGINE_FREE = ("router", "rest_shim", "tensorway")


def sources(package: str) -> list[Path]:
    """The hand-written files of a package."""
    return [path for path in (ROOT / package).rglob("*.py") if "v1" not in path.parts]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """The absolute imports of a file, as full names with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or "", node.lineno


def found(package: str, *names: str) -> dict[str, set[str]]:
    """The files of a package that import one of the names, with what they import."""
    hits = {
        str(path.relative_to(ROOT)): {name.split(".")[0] for name, _ in imports(path)} & {*names}
        for path in sources(package)
    }
    return {path: names for path, names in hits.items() if names}


def modules(package: str) -> list[str]:
    """The names of all modules of a package that are there to be imported."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in sources(package))
    return [".".join(path.parts) for path in paths if path.name not in {"__main__", "__init__"}]


@pytest.mark.parametrize("service", SERVICES)
def test_services_do_not_import_each_other(service: str) -> None:
    """Each can be replaced, shipped and read alone; what they share is in tensorway."""
    assert found(service, *(other for other in SERVICES if other != service)) == {}


def test_the_shared_core_imports_no_service() -> None:
    """Dependencies point one way."""
    assert found("tensorway", *SERVICES) == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_heavy_imports_are_in_one_file(package: str) -> None:
    """Everything but one file of a service runs, and is tested, on a laptop without an engine."""
    allowed = 0 if package in ENGINE_FREE else 1
    for heavy in ("torch", "vllm"):
        assert len(found(package, heavy)) <= allowed, found(package, heavy)


@pytest.mark.parametrize("package", PACKAGES)
def test_init_files_import_nothing(package: str) -> None:
    """Importing a package costs nothing, and cannot fail."""
    for path in sources(package):
        if path.name == "__init__.py":
            nodes = ast.walk(ast.parse(path.read_text()))
            assert not [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)], path


@pytest.mark.parametrize("package", ENGINE_FREE)
def test_no_engine_is_loaded(package: str) -> None:
    """Measured: with every module of the package imported, no engine is in memory."""
    names = modules(package)
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert names or not sources(package)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
