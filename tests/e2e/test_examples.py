"""The examples for gRPC, and embedding a file, on a real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorway.client import Client

pytestmark = pytest.mark.vllm

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
NOTES = {
    "shop.md": "Send it back within 30 days, and you are refunded.\n\nWe are closed on Sundays.",
    "deep/garden.txt": "Tomatoes need a lot of sun.\n\nMint grows in the shade.",
    "ignored.csv": "refund,money,back",
}


def run(minilm, *command: str | Path) -> str:
    """What a command prints."""
    path = f"{BIN}:{os.environ['PATH']}"
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, "ROUTER": minilm.grpc},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_folder_search(minilm, tmp_path: Path) -> None:
    """Questions find what answers them, and only what is new is embedded."""
    for name, text in NOTES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def search(question: str) -> list[str]:
        example = EXAMPLES / "folder_search.py"
        command = (sys.executable, "-W", "error", example, tmp_path, question)
        return run(minilm, *command).splitlines()

    counts, best, *_ = search("How do I get my money back?")
    assert counts == "4 new, 0 gone, 4 paragraphs"
    assert best.endswith("  shop.md: Send it back within 30 days, and you are refunded.")
    (tmp_path / "deep/garden.txt").write_text("Mint grows in the shade.\n\nRoses have thorns.")
    counts, best, *_ = search("Which herb can do without light?")
    assert counts == "1 new, 1 gone, 4 paragraphs"
    assert best.endswith("  deep/garden.txt: Mint grows in the shade.")


def test_grpcurl_session(minilm) -> None:
    """Services, health, models, vectors, a stream and an error, from a shell."""
    shown = run(minilm, EXAMPLES / "grpcurl.sh")
    for part in (
        "tensorway.v1.EmbeddingService\n",
        "oneof input {",
        '"status": "SERVING"',
        '"name": "minilm"',
        '"state": "WORKER_STATE_READY"',
        '"dimensions": 384',
        '"request_id": "second"',
    ):
        assert part in shown
    # INVALID_ARGUMENT is code 3.
    assert shown.endswith("status 67\n")


def test_embed_a_file(minilm, tmp_path: Path) -> None:
    """The rows of the file have the vectors that the client gets."""
    lines = [f"Sentence number {number} of the file." for number in range(200)]
    source, output = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("\n".join(lines))
    flags = ("--router", minilm.grpc, "--model", "minilm", "--output", output)
    run(minilm, BIN / "tensorway", "embed", source, *flags)
    with Client(minilm.grpc) as client:
        expected = client.embed(lines, model="minilm")
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)


def test_bench(minilm) -> None:
    """A table without errors."""
    flags = ("--duration", "0.5", "--batch", "8", "--concurrency", "2")
    command = (BIN / "tensorway", "bench", "--router", minilm.grpc, "--model", "minilm", *flags)
    assert run(minilm, *command).split()[-1] == "none"
