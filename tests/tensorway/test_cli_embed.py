"""`tensorway embed`: formats, interruptions, bad rows, bounds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorway import errors
from tests.tensorway.cli import Result, contents, expected, served, start, tensorway

FORMATS = ("jsonl", "npy", "parquet")
MIB = 1024 * 1024


def texts(count: int) -> list[str]:
    """So many different texts."""
    return [f"text {number}" for number in range(count)]


def text_file(folder: Path, lines: list[str], name: str = "in.txt") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


async def embed(address: str, *args: str | Path, **more: Any) -> Result:
    """The command, with the fake's model."""
    return await tensorway("embed", *args, "--router", address, "--model", "minilm", **more)


async def embedded(address: str, *args: str | Path, **more: Any) -> dict[str, Any]:
    """What a run that went well tells."""
    result = await embed(address, *args, "--json", **more)
    assert (result.status, result.err) == (0, "")
    return json.loads(result.out)


@pytest.mark.parametrize("format", FORMATS)
async def test_every_output(tmp_path: Path, format: str) -> None:
    """The rows of a text file, in order, under their numbers."""
    lines, output = texts(300), tmp_path / f"out.{format}"
    async with served() as (_, address):
        told = await embedded(address, text_file(tmp_path, lines), "--output", output)
    assert (told["rows"], told["skipped"], told["dimensions"]) == (300, 0, 8)
    assert told["files"] == [str(output)]
    ids, vectors = contents(output)
    assert ids == list(range(300))
    np.testing.assert_array_equal(vectors, expected(lines))
    assert set(tmp_path.iterdir()) == {tmp_path / "in.txt", output}  # noqa: ASYNC240


async def test_every_input(tmp_path: Path) -> None:
    """JSON lines and Parquet, with ids, from files and from standard input."""
    lines, ids = texts(40), [f"doc-{number}" for number in range(40)]
    rows = [{"body": text, "key": key} for text, key in zip(lines, ids, strict=True)]
    jsonl = tmp_path / "in.jsonl"
    jsonl.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    parquet = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist(rows), parquet, row_group_size=7)
    fields = ("--text-field", "body", "--id-field", "key")
    async with served() as (_, address):
        for number, path in enumerate((jsonl, parquet)):
            output = tmp_path / f"{number}.parquet"
            await embedded(address, path, *fields, "--output", output)
            piped = tmp_path / f"{number}.npy"
            kind = ("--input-format", path.suffix[1:])
            args = (*kind, *fields, "--output", piped)
            await embedded(address, *args, given=path.read_bytes())
            for made in (output, piped):
                assert contents(made)[0] == ids
                np.testing.assert_array_equal(contents(made)[1], expected(lines))


async def test_standard_input_to_standard_output() -> None:
    """Without files it is a filter."""
    async with served() as (_, address):
        result = await embed(address, given="\ufeffone\r\ntwo".encode())
    assert (result.status, result.err) == (0, "")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["id"] for row in rows] == [0, 1]
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(vectors, expected(["one", "two"]))


async def test_options_reach_the_service(tmp_path: Path) -> None:
    """Dimensions, truncation, prompt and type are the service's to obey."""
    output = tmp_path / "out.npy"
    flags = ("--dimensions", "4", "--truncate", "-1", "--prompt-name", "query")
    async with served(packed=bytes([1, 255])) as (fake, address):
        args = (*flags, "--dtype", "int8", "--output", output)
        await embedded(address, text_file(tmp_path, ["a"]), *args)
    (request,) = fake.requests
    assert (request.dimensions, request.truncate_prompt_tokens) == (4, -1)
    assert request.prompt_name == "query"
    assert contents(output)[1].tolist() == [[1, -1]]


@pytest.mark.parametrize("format", FORMATS)
async def test_killed_twice_and_whole(tmp_path: Path, format: str) -> None:
    """After kill -9, and another, every row is there once and in its place."""
    lines, output = texts(3000), tmp_path / f"out.{format}"
    source, folder = text_file(tmp_path, lines), tmp_path / f"out.{format}.partial"
    async with served(seconds=0.03) as (fake, address):
        args = ("embed", source, "--model", "minilm", "--output", output, "--router", address)
        for _ in range(2):
            before = rows_done(folder)
            process = await start(*args, "--batch", "20")
            async with asyncio.timeout(30):
                while rows_done(folder) <= before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            process.kill()
            await process.communicate()
            assert not output.exists()
        kept, fake.seconds, fake.texts = rows_done(folder), 0.0, 0
        told = await embedded(address, source, "--output", output)
    assert told["resumed_at"] == kept
    assert fake.texts == 3000 - kept
    ids, vectors = contents(output)
    assert ids == list(range(3000))
    np.testing.assert_array_equal(vectors, expected(lines))


def rows_done(folder: Path) -> int:
    """Rows that an unfinished run has for sure."""
    state = folder / "state.json"
    return json.loads(state.read_text())["rows"] if state.exists() else 0


async def test_interrupted_by_a_person(tmp_path: Path) -> None:
    """Ctrl-C ends it at once with status 130, and says how to go on."""
    source, output = text_file(tmp_path, texts(500)), tmp_path / "out.npy"
    async with served(seconds=30) as (fake, address):
        args = ("--model", "minilm", "--output", output, "--router", address)
        process = await start("embed", source, *args)
        await asyncio.wait_for(fake.started.wait(), 30)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130
    assert err == b"Interrupted. The same command goes on from here.\n"


async def test_only_one_run_writes(tmp_path: Path) -> None:
    """A second run of the same command is refused while the first goes on."""
    source, output = text_file(tmp_path, texts(5)), tmp_path / "out.npy"
    async with served(seconds=30) as (fake, address):
        args = ("--model", "minilm", "--output", output, "--router", address)
        process = await start("embed", source, *args)
        await asyncio.wait_for(fake.started.wait(), 30)
        second = await embed(address, source, "--output", output)
        process.kill()
        await process.communicate()
    assert second.status == 2
    assert "another run is writing there" in second.err


async def test_a_lost_service_keeps_what_was_done(tmp_path: Path) -> None:
    """A failure is status 1, after which the same command goes on."""
    lines, output = texts(600), tmp_path / "out.npy"
    source = text_file(tmp_path, lines)
    lost = errors.Internal("the engine is broken")
    async with served() as (fake, address):
        fake.errors_left = 0
        task = asyncio.create_task(
            embed(address, source, "--output", output, "--batch", "20", "--in-flight", "1")
        )
        while len(fake.requests) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        fake.error, fake.errors_left = lost, 1
        failed = await task
        assert failed.status == 1
        assert failed.err == f"Error: {address}: the engine is broken\n"
        told = await embedded(address, source, "--output", output)
    assert told["resumed_at"] >= 60
    np.testing.assert_array_equal(contents(output)[1], expected(lines))


async def test_nobody_is_there(tmp_path: Path) -> None:
    """A wrong address is told at once, not waited for."""
    address = "127.0.0.1:1"
    result = await embed(address, text_file(tmp_path, ["a"]), "--output", tmp_path / "out.npy")
    assert result.status == 1
    assert result.err.startswith(f"Error: {address}: ")
    assert result.err.count("\n") == 1


async def test_overload_is_waited_for(tmp_path: Path) -> None:
    """A service that is busy for a while loses nothing."""
    source, output = text_file(tmp_path, texts(3)), tmp_path / "out.npy"
    busy = errors.ResourceExhausted("busy", retry_after=0.01)
    async with served(error=busy, errors_left=3) as (_, address):
        assert (await embedded(address, source, "--output", output))["rows"] == 3


async def test_what_is_too_large_is_sent_in_halves(tmp_path: Path) -> None:
    """A limit that only the service knows makes batches smaller."""
    source, output = text_file(tmp_path, texts(9)), tmp_path / "out.npy"
    async with served(error=errors.TooLarge("too large"), errors_left=3) as (_, address):
        assert (await embedded(address, source, "--output", output))["rows"] == 9
    np.testing.assert_array_equal(contents(output)[1], expected(texts(9)))


BAD = ["good", "", "unwanted a", "fine", "unwanted b", "last"]


@pytest.mark.parametrize("format", FORMATS)
async def test_bad_rows_are_put_aside(tmp_path: Path, format: str) -> None:
    """Rows that the file, or the service, makes impossible: all others are embedded."""
    output, bad = tmp_path / f"out.{format}", tmp_path / "bad.jsonl"
    source = text_file(tmp_path, BAD)
    async with served() as (_, address):
        told = await embedded(address, source, "--output", output, "--skip-bad", bad)
    assert (told["rows"], told["skipped"]) == (3, 3)
    ids, vectors = contents(output)
    assert ids == [0, 3, 5]
    np.testing.assert_array_equal(vectors, expected(["good", "fine", "last"]))
    rows = [json.loads(line) for line in bad.read_bytes().splitlines()]
    assert [(row["line"], row["row"]) for row in rows] == [
        (2, ""),
        (3, "unwanted a"),
        (5, "unwanted b"),
    ]
    assert rows[1]["error"] == "nobody wants it"


@pytest.mark.parametrize(
    ("number", "why"), [(1, "expected a text, got an empty one"), (2, "wants")]
)
async def test_the_first_bad_row_ends_the_run(tmp_path: Path, number: int, why: str) -> None:
    """Its line and the reason are told, what came before is kept, and the run goes on later."""
    lines, output = texts(700), tmp_path / "out.jsonl"
    lines[500] = BAD[number]
    source = text_file(tmp_path, lines)
    async with served() as (_, address):
        stopped = await embed(address, source, "--output", output)
        assert stopped.status == 3
        assert stopped.err.startswith(f"Error: {source}: line 501: ")
        assert why in stopped.err
        assert stopped.err.count("\n") == 1
        lines[500] = "mended"
        text_file(tmp_path, lines)
        told = await embedded(address, source, "--output", output)
    assert told["resumed_at"] == 500
    np.testing.assert_array_equal(contents(output)[1], expected(lines))


async def test_a_run_that_did_nothing_binds_nobody(tmp_path: Path) -> None:
    """After a misspelt model the same command with the right one begins anew."""
    source, output = text_file(tmp_path, texts(3)), tmp_path / "out.npy"
    async with served() as (_, address):
        result = await tensorway(
            *("embed", "--router", address, "--model", "nobody", source, "--output", output)
        )
        assert (result.status, "'nobody'" in result.err) == (1, True)
        assert (await embedded(address, source, "--output", output))["rows"] == 3


async def test_what_does_not_fit_together(tmp_path: Path) -> None:
    """Other settings, another input or an output that exists: status 2, and what to do."""
    source, output = text_file(tmp_path, [*texts(300), ""]), tmp_path / "out.npy"
    async with served() as (_, address):

        async def refused(*args: str | Path) -> str:
            result = await embed(address, *args)
            assert result.status == 2
            return result.err

        await embed(address, source, "--output", output)
        told = await refused(source, "--output", output, "--truncate", "-1")
        assert "was begun with truncate_prompt_tokens None, not -1; --restart discards it" in told
        text_file(tmp_path, ["another", *texts(300)])
        assert "the input's first 300 rows are not those" in await refused(
            source, "--output", output
        )
        text_file(tmp_path, texts(2))
        assert "the input's first 300 rows are not" in await refused(source, "--output", output)
        assert (await embedded(address, source, "--output", output, "--restart"))["rows"] == 2
        assert "--overwrite replaces it" in await refused(source, "--output", output)
        text_file(tmp_path, texts(3))
        assert (await embedded(address, source, "--output", output, "--overwrite"))["rows"] == 3
        assert "expected .jsonl, .npy or .parquet" in await refused(source, "--output", "out.csv")
        assert "give --input-format" in await refused(text_file(tmp_path, ["a"], "in.csv"))
        parquet = tmp_path / "in.parquet"
        parquet.write_bytes(b"no")
        assert "no Parquet file" in await refused(parquet)
        pq.write_table(pa.table({"a": ["x"]}), parquet)
        assert "--text-field: no column 'text'; columns: a" in await refused(parquet)


async def test_interrupted_after_the_last_step(tmp_path: Path) -> None:
    """An output that is whole, beside work that was not tidied up, is left as it is."""
    source, output = text_file(tmp_path, [*texts(3), ""]), tmp_path / "out.npy"
    async with served() as (_, address):
        await embed(address, source, "--output", output)
        folder = tmp_path / "out.npy.partial"
        (folder / "vectors").rename(output)
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**state, "output": "vectors"}))
        result = await embed(address, source, "--output", output)
    assert (result.status, result.err) == (0, f"{output} is whole.\n")
    assert not folder.exists()


async def test_nothing_to_embed(tmp_path: Path) -> None:
    """An empty input makes an empty output of each format."""
    source = text_file(tmp_path, [])
    async with served() as (_, address):
        for name in FORMATS:
            output = tmp_path / f"out.{name}"
            assert (await embedded(address, source, "--output", output))["rows"] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert np.load(tmp_path / "out.npy").size == 0
    assert len(pq.read_table(tmp_path / "out.parquet")) == 0


async def test_parquet_is_an_extra(tmp_path: Path) -> None:
    """Without pyarrow everything else works, and Parquet says what to install."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    source, env = text_file(tmp_path, ["a"]), {"PYTHONPATH": str(tmp_path)}
    async with served() as (_, address):
        await embedded(address, source, "--output", tmp_path / "out.npy", **env)
        result = await embed(address, source, "--output", tmp_path / "out.parquet", **env)
    assert result.status == 2
    assert "pip install 'tensorway[parquet]'" in result.err


def peak_memory(*args: str | Path) -> tuple[int, int]:
    """Exit status of a Python process, and the most bytes that it had."""
    process = subprocess.Popen([sys.executable, *map(str, args)])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    return status, usage.ru_maxrss * 1024


async def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """Sixteen times the rows take no more memory, though their vectors would be 80 MB."""
    peaks = []
    async with served(width=2048) as (_, address):
        for count in (625, 10_000):
            source, output = text_file(tmp_path, texts(count)), tmp_path / f"{count}.npy"
            args = ("--router", address, "--model", "minilm", "--output", output)
            command = ("-m", "tensorway.cli", "embed", source, *args, "--in-flight", "2")
            status, peak = await asyncio.to_thread(peak_memory, *command)
            assert status == 0
            peaks.append(peak)
    assert peaks[1] - peaks[0] < 32 * MIB
