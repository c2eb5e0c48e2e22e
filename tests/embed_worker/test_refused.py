"""Flags that make no sense for a pooling worker stop it at once, with one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from embed_worker.refused import REFUSED, RefusedFlag, refuse_arguments, refuse_flags

# Importing vllm takes several seconds; a stand-in that fails shows that it is not tried.
NO_VLLM = "import sys; sys.modules['vllm'] = None; from embed_worker.__main__ import main; main()"


def refusal(*flags: str) -> str:
    """What is wrong with the flags; empty when nothing is."""
    try:
        refuse_flags(flags)
    except RefusedFlag as error:
        return str(error)
    return ""


def spellings(flag: str) -> list[tuple[str, ...]]:
    """Every way in which vLLM's parser takes a flag."""
    snake = "--" + flag[2:].replace("-", "_")
    return [
        (flag, "value"),
        (f"{flag}=value",),
        (snake, "value"),
        (f"{snake}=value",),
        (f"{flag}.key", "value"),
        (f"{flag}.key=value",),
        (f"--no-{flag[2:]}",),
    ]


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_every_refused_flag_in_every_spelling(flag: str) -> None:
    """The message is one line and begins with the flag's own name."""
    for words in spellings(flag):
        message = refusal("model", "--dtype", "float32", *words)
        assert message.removeprefix("--no-").removeprefix("--").startswith(flag[2:]), words
        assert "\n" not in message


@pytest.mark.parametrize(
    "flag", ["--mm-processor-kwargs", "--mm-anything-new", "--benchmark-new", "--disaggregation-x"]
)
def test_whole_families(flag: str) -> None:
    """Flags that a later vLLM adds to a family are refused too."""
    assert refusal("model", flag, "1").startswith(f"{flag}: ")


@pytest.mark.parametrize("words", [("--runner", "generate"), ("--runner=draft",), ("--runner",)])
def test_any_other_runner(words: tuple[str, ...]) -> None:
    """The only runner is pooling."""
    assert "--runner pooling" in refusal("model", *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--runner", "pooling"),
        ("--runner=auto",),
        ("--dtype", "float32", "--pooler-config", '{"pooling_type":"MEAN","use_activation":false}'),
        ("--hf-overrides", '{"is_matryoshka": true}'),
        ("--served-model-name", "a", "b", "--max-model-len", "512", "-tp", "2"),
        ("--hf-overrides", '{"text": "--limit-mm-per-prompt"}'),
    ],
)
def test_flags_of_embedding_deployments_pass(words: tuple[str, ...]) -> None:
    """A command line of an embedding deployment is moved over as it is."""
    assert refusal("model", *words) == ""


def test_what_reached_the_parser_by_another_way() -> None:
    """A shortened flag, or one of a --config file, is seen by its value."""
    defaults = {"runner": "auto", "limit_mm_per_prompt": {}, "dtype": "auto"}
    refuse_arguments(defaults | {"dtype": "float32", "runner": "pooling"}, defaults)
    with pytest.raises(RefusedFlag, match="--limit-mm-per-prompt: "):
        refuse_arguments(defaults | {"limit_mm_per_prompt": {"image": 1}}, defaults)
    with pytest.raises(RefusedFlag, match="--runner generate: "):
        refuse_arguments(defaults | {"runner": "generate"}, defaults)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        pytest.param(("--limit-mm-per-prompt", '{"image":1}'), "--limit-mm-per-prompt", id="mm"),
        pytest.param(("--kv-transfer-config={}",), "--kv-transfer-config", id="disaggregation"),
        pytest.param(("--runner", "generate"), "--runner generate", id="runner"),
        pytest.param(("--benchmark-mode",), "--benchmark-mode", id="benchmark"),
        pytest.param(("--endpoint", "embed"), "Invalid value for '--endpoint'", id="endpoint"),
        pytest.param(("--endpoint", "a.b.c.d"), "namespace.component.endpoint", id="four parts"),
        pytest.param(("--engine-timeout", "nan"), "--engine-timeout", id="timeout"),
        pytest.param(("--max-inputs", "0"), "--max-inputs", id="no inputs"),
    ],
)
def test_the_process_ends_at_parse_time(flags: tuple[str, ...], line: str) -> None:
    """Status 2 and one line that names the flag, before vllm is imported."""
    ran = subprocess.run(
        [sys.executable, "-c", NO_VLLM, "model", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    *_, last = ran.stderr.splitlines()
    assert last.startswith("Error: ")
    assert line in last
    assert not ran.stdout


@pytest.mark.vllm
def test_vllm_s_own_parser(tmp_path: Path) -> None:
    """What only the engine's process sees is refused there, before the model is loaded."""
    config = tmp_path / "config.yaml"
    config.write_text("limit-mm-per-prompt: '{\"image\": 1}'\n")
    pooling = {"type": "sentence_transformers.models.Pooling", "path": "pooling"}
    (tmp_path / "modules.json").write_text(json.dumps([pooling]))
    (tmp_path / "pooling").mkdir()
    (tmp_path / "pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    code = """
import sys
from embed_worker import vllm_engine
from tensorway.flags import BadFlag
parse, start = eval(sys.argv[1])
def attempt(step, *arguments):
    try:
        step(*arguments)
        print("taken")
    except BadFlag as error:
        print(error)
for flags in parse:
    attempt(vllm_engine._parse, flags)
attempt(vllm_engine.VllmEngine, start, 1)
print(vllm_engine._parse(["m", "--served-model-name", "a", "b"]).served_model_name)
"""
    parse = [
        ["model", "--limit-mm", '{"image": 1}'],
        ["model", "--config", str(config)],
        ["model", "--runn", "generate"],
        ["model", "--pooler-config", '{"enable_chunked_processing": true}'],
        ["model", "--dtype", "float32", "--runner", "pooling"],
    ]
    ran = subprocess.run(
        [sys.executable, "-c", code, repr((parse, [str(tmp_path)]))],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    lines = ran.stdout.splitlines()[-7:]
    assert lines[0].startswith("--limit-mm-per-prompt: "), ran.stderr
    assert lines[1].startswith("--limit-mm-per-prompt: ")
    assert lines[2].startswith("--runner generate: ")
    assert lines[3].startswith("--pooler-config enable_chunked_processing: ")
    assert lines[4] == "taken"
    assert lines[5].startswith("MODEL: its pooling is max_tokens, ")
    assert lines[6] == "['a', 'b']"
