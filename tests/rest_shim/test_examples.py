"""The examples for REST clients, run as they are written."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.rest_shim.conftest import Shim

EXAMPLES = Path(__file__).parents[2] / "examples"


async def run(shim: Shim, *command: str) -> str:
    """Standard output of an example that ended well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=EXAMPLES,
        env={**os.environ, "OPENAI_BASE_URL": f"{shim.url}/v1"},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return output.decode()


async def test_openai_sdk(shim: Shim):
    """Models, vectors and an error through the official SDK."""
    lines = (await run(shim, sys.executable, "openai_sdk.py")).splitlines()
    assert "minilm" in lines[0]
    assert [line[:3] for line in lines[1:3]] == ["0 8", "1 8"]
    assert lines[3] == "refused: model_not_found"


async def test_langchain(shim: Shim):
    """LangChain finds the document that equals the question."""
    assert await run(shim, sys.executable, "langchain_search.py") == "nearest: Rain is expected.\n"


async def test_llama_index(shim: Shim):
    """LlamaIndex finds the text that equals the question."""
    output = await run(shim, sys.executable, "llama_index_search.py")
    assert output == "nearest: Rain is expected.\n"


async def test_curl(shim: Shim):
    """The shell session shows models, both encodings and an error with its status."""
    models, floats, packed, error, status = (await run(shim, "./curl.sh")).splitlines()
    assert '"id":"minilm"' in models
    assert floats.count('"object":"embedding"') == 2
    assert '"embedding":"' in packed
    assert '"code":"model_not_found"' in error
    assert status == "404"
