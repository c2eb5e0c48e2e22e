"""Checks and tests everything, or only what is named; `make test` and CI call it."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import time

from steps import ROOT, StepError, step

BIN, PROTOS = ROOT / ".venv/bin", ROOT / ".venv-protos/bin"


def main() -> None:
    """Run the checks in order; the first that fails ends the run with what it printed."""
    chosen = sys.argv[1:] or list(CHECKS)
    started = time.monotonic()
    try:
        for name in chosen:
            CHECKS[name]()
    except StepError as error:
        sys.exit(f"\n{error}\n" if str(error) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"All checks passed in {time.monotonic() - started:.0f} s.")


def code() -> None:
    """Style and types."""
    step("style", [BIN / "ruff", "check", "--quiet"])
    step("format", [BIN / "ruff", "format", "--check", "--quiet"])
    step("types", [BIN / "mypy"])


def contract() -> None:
    """The contract is well formed, breaks no client, and is what the code was made from."""
    step("contract: lint", [PROTOS / "buf", "lint"])
    step("contract: format", [PROTOS / "buf", "format", "--diff", "--exit-code"])
    with tempfile.TemporaryDirectory() as folder:
        if export(base(), folder):
            step("contract: compatible", [PROTOS / "buf", "breaking", "--against", folder])
    with tempfile.TemporaryDirectory() as folder:
        step("contract: generate", ["make", "--silent", "protos", f"OUT={folder}"])
        made, kept = f"{folder}/tensorway/v1", "tensorway/v1"
        ours = ("--exclude=__init__.py", "--exclude=__pycache__")
        step("contract: generated code", ["diff", "--recursive", "--brief", *ours, made, kept])


def tests() -> None:
    """The tests, with real servers and a real engine."""
    step("tests", [BIN / "python", "-m", "pytest"], live=True)


def base() -> str:
    """The commit that clients may rely on: main, or before it when this is main itself."""
    head = commit("HEAD")
    known = (commit(name) for name in ("main", "origin/main", "HEAD^"))
    return next((found for found in known if found not in ("", head)), "")


def commit(name: str) -> str:
    """The id of a commit, or nothing when there is none of that name here."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def export(version: str, folder: str) -> bool:
    """Write the contract of a commit into a folder; False where there was none yet."""
    command = ["git", "archive", version, "protos", "buf.yaml"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if version and found.returncode == 0:
        with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
            archive.extractall(folder, filter="data")
    return bool(version) and found.returncode == 0


CHECKS = {"code": code, "contract": contract, "tests": tests}

if __name__ == "__main__":
    main()
