"""The examples for clients, run as they are written."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from tests.rest_shim.conftest import Stack

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLIENTS = (ROOT / "docs/clients.md").read_text()
# Node.js is installed beside Python.
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
# Pinned, so that a release of theirs cannot fail a run of ours.
NODE_PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")


async def run(stack: Stack, *command: str, folder: Path = EXAMPLES) -> str:
    """Standard output of an example that ended well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**ENV, "OPENAI_BASE_URL": f"{stack.url}/v1", "ROUTER": stack.router},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return output.decode()


async def test_openai_sdk(stack: Stack):
    """Models, vectors and an error through the official SDK."""
    lines = (await run(stack, sys.executable, "openai_sdk.py")).splitlines()
    assert "minilm" in lines[0]
    assert [line[:3] for line in lines[1:3]] == ["0 3", "1 3"]
    assert lines[3] == "refused: model_not_found"


async def test_langchain(stack: Stack):
    """LangChain finds the document that equals the question."""
    assert await run(stack, sys.executable, "langchain_search.py") == "nearest: Rain is expected.\n"


async def test_llama_index(stack: Stack):
    """LlamaIndex finds the text that equals the question."""
    output = await run(stack, sys.executable, "llama_index_search.py")
    assert output == "nearest: Rain is expected.\n"


async def test_curl(stack: Stack):
    """The shell session shows models, both encodings and an error with its status."""
    models, floats, packed, error, status = (await run(stack, "./curl.sh")).splitlines()
    assert '"id":"minilm"' in models
    assert floats.count('"object":"embedding"') == 2
    assert '"embedding":"' in packed
    assert '"code":"model_not_found"' in error
    assert status == "404"


async def test_python_client(stack: Stack):
    """The Python client's calls, one after the other."""
    lines = (await run(stack, sys.executable, "python_client.py")).splitlines()
    assert lines[0] == "(2, 32) float32"
    assert lines[1:3] == ["batch 0 (2, 32) None", "batch 1 (1, 32) None"]
    assert lines[3].startswith("batch 2 None texts.texts[0]: expected a text")
    assert lines[4] == "refused: MODEL_NOT_FOUND"


async def test_node(stack: Stack, tmp_path: Path):
    """The program in docs/clients.md for Node.js: two vectors, and an error with its words."""
    (program,) = re.findall(r"```javascript\n(.*?)```", CLIENTS, re.DOTALL)
    program = program.replace("path/to/tensorway/protos", str(ROOT / "protos"))
    (tmp_path / "embed.mjs").write_text(program.replace("127.0.0.1:50051", stack.router))
    install = ("npm", "install", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts")
    await run(stack, *install, *NODE_PACKAGES, folder=tmp_path)
    first, second, refused = (await run(stack, "node", "embed.mjs", folder=tmp_path)).splitlines()
    assert [line.split()[:3] for line in (first, second)] == [["0", "32", "["], ["1", "32", "["]]
    assert refused == "refused: model: 'no-such-model' is not known; known: 'minilm'"
