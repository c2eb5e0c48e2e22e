"""`tensorway check`: what would run, and what is wrong, by its key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorway.commands.check import guess
from tests.tensorway.cli import tensorway

FLEET = """
metrics_port = 9100
[router]
port = 50051
args = ["--policy", "round_robin"]
[[workers]]
model = "org/model"
count = 2
args = ["--dtype", "float32"]
[encoder]
backend = "package.module:Eye"
[generator]
model = "org/chat"
"""
ROUTER = '[aliases]\ncanary = { minilm = 9, "minilm-v2" = 1 }\n'


def file(folder: Path, text: str, name: str = "file.toml") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_text(text)
    return path


async def test_a_fleet_that_is_right(tmp_path: Path) -> None:
    """Every process is named, with the command that would start it."""
    path = file(tmp_path, FLEET)
    result = await tensorway("check", path)
    assert (result.status, result.err) == (0, "")
    first, *processes = result.out.splitlines()
    assert first == f"{path}: ok, a fleet file"
    names = [line.split()[0] for line in processes]
    assert names == ["router", "worker-1", "worker-2", "generator", "encoder", "rest"]
    assert "tensorway-router --policy round_robin --port 50051" in processes[0]
    assert "tensorway-embed-worker org/model --dtype float32 --router" in processes[2]
    assert processes[2].endswith("--metrics-port 9101")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FLEET.replace("port = 50051", "prot = 1"), "router: Object contains unknown field `prot`"),
        (FLEET.replace("port = 50051", "port = 70000"), "router.port: Expected `int` <= 65535"),
        (
            FLEET.replace("count = 2", 'count = "2"'),
            "workers[0].count: Expected `int`, got `str`",
        ),
        (FLEET.replace("round_robin", "fastest"), "Invalid value for '--policy': 'fastest'"),
        (FLEET.replace("--dtype", "--mm-processor-kwargs"), "--mm-processor-kwargs: an embedding"),
        ("[router]\nport = 0\n", "nothing to serve; add [[workers]] with a model"),
        ("[router", "Expected ']' at the end of a table declaration (at end of document)"),
        ("[aliases]\na = { b = 0 }\n", "aliases.a: expected a model with a weight above 0"),
        (
            '[[workers]]\naddress = "h"\nendpoint = "a.b.c"\n',
            "matching regex '^\\\\S+:\\\\d+$' - at `$.workers[0].address`",
        ),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, text: str, why: str) -> None:
    """The key, or the flag, and what was expected; status 2."""
    path = file(tmp_path, text)
    result = await tensorway("check", path)
    assert (result.status, result.err) == (2, "")
    assert result.out.startswith(f"{path}: wrong, a ")
    assert why in result.out


async def test_several_files_as_json(tmp_path: Path) -> None:
    """One report for each file; one that is wrong decides the status."""
    right = file(tmp_path, ROUTER, "router.toml")
    wrong = file(tmp_path, "[rest]\nport = -1\n", "wrong.toml")
    result = await tensorway("check", right, wrong, "--json")
    assert result.status == 2
    first, second = json.loads(result.out)
    assert first == {"file": str(right), "kind": "router", "error": "", "processes": []}
    assert second["kind"] == "fleet"
    assert second["error"].startswith("rest.port: ")


def test_kinds_are_guessed(tmp_path: Path) -> None:
    """By the keys that only one of them has."""
    static = '[[workers]]\naddress = "host:1"\nendpoint = "a.b.c"\n'
    assert [guess(file(tmp_path, text)) for text in (FLEET, ROUTER, static, "[broken")] == [
        "fleet",
        "router",
        "router",
        "fleet",
    ]


async def test_no_file_is_an_error() -> None:
    """It says what it takes."""
    result = await tensorway("check")
    assert result.status == 2
    assert "which files?" in result.err
