"""The example of a question about a picture, as it is written but for the ports."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from PIL import Image

from tensorway.commands import demo, stack
from tests.handoff.prompts import png

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/image_question.toml"
COMMANDS = re.sub(r"\\\n#", "", EXAMPLE.read_text())
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[str]:
    """URL of the shim of the example's fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "smollm2").symlink_to(smollm2)
    ports = stack.settle(demo.minilm(0, 0))
    chosen = ("--port", str(ports.router.port), "--rest-port", str(ports.rest.port))
    command = (sys.executable, "-m", "tensorway.cli", "up", "--fleet", str(EXAMPLE), *chosen)
    log = folder / "log"
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        while "Ctrl-C stops everything" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{ports.rest.port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("color", ["red", "blue"])
def test_the_answer_is_about_the_picture(rest: str, tmp_path: Path, color: str) -> None:
    """The command of the example names the colour of the picture."""
    (tmp_path / "photo.png").write_bytes(png(Image.new("RGB", (40, 30), color)))
    (line,) = re.findall(r"^# +(tensorway generate .*)$", COMMANDS, re.MULTILINE)
    command = [BIN / "tensorway", *shlex.split(line)[1:], "--rest", rest]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert color in ran.stdout.lower()


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(rest: str, stream: bool) -> None:
    """The bytes of an answer's tokens are its text; without randomness they are the likeliest."""
    with openai.OpenAI(base_url=f"{rest}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Repeat: naïve 東京 🙂"}],
            temperature=0,
            max_tokens=24,
            logprobs=True,
            top_logprobs=2,
            stream=stream,
        )
        choices = [chunk.choices[0] for chunk in (answer if stream else [answer])]
    parts = [choice.delta if stream else choice.message for choice in choices]
    content = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    data = b"".join(bytes(one.bytes) for one in content)
    text = "".join(part.content for part in parts)
    assert text
    # The end token has no text.
    assert data.decode(errors="replace").startswith(text)
    for one in content:
        best, _second = one.top_logprobs
        assert one.logprob == pytest.approx(best.logprob, abs=1e-3)
