"""`tensorway embed`: a file of texts to a file of vectors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import orjson
from rich.console import Console

from tensorway._client_requests import Vectors
from tensorway.bulk import formats, journal, sources
from tensorway.bulk.journal import Journal
from tensorway.bulk.options import STDOUT, FileOptions, ModelOptions
from tensorway.bulk.progress import Progress
from tensorway.bulk.rows import Row
from tensorway.bulk.run import BadRow, Limits, Sink, run
from tensorway.bulk.sender import Sender
from tensorway.client import AsyncClient
from tensorway.commands.ask import AskOptions
from tensorway.errors import TensorwayError
from tensorway.flags import BadFlag, command
from tensorway.options import DialOptions


class _BadRow(click.ClickException):
    exit_code = 3


@command("tensorway-embed", FileOptions, ModelOptions, AskOptions, DialOptions, terse=True)
def embed(files: FileOptions, model: ModelOptions, ask: AskOptions, dial: DialOptions) -> None:
    """Embed a file of texts.

    tensorway embed INPUT --model MODEL --output OUTPUT: INPUT holds one text a line (.txt),
    one JSON object a line (.jsonl), or is a Parquet file; without it, or with -, standard
    input is read. Vectors are written in the order of the rows.

    The output appears when it is whole. Until then the work is in OUTPUT.partial, and the
    same command goes on from there after an interruption of any kind.

    Exit status: 0 all done, 1 the service failed, 2 wrong flags or files, 3 a bad row.
    """
    if ask.json and files.output == STDOUT:
        raise BadFlag("--json tells about the output file; give one with --output")
    work = _to_stdout if files.output == STDOUT else _to_file
    try:
        asyncio.run(work(files, model, ask, dial))
    except BadRow as error:
        hint = "" if files.skip_bad else " (--skip-bad FILE puts such rows aside)"
        name = "standard input" if files.input == sources.STDIN else files.input
        raise _BadRow(f"{name}: {error}{hint}") from None
    except TensorwayError as error:
        raise click.ClickException(f"{ask.router}: {error}") from None


async def _to_file(
    files: FileOptions, model: ModelOptions, ask: AskOptions, dial: DialOptions
) -> None:
    if _is_done(files):
        click.echo(f"{files.output} is whole.", err=True)
        return
    with journal.opened(files.folder, _settings(files, model)) as work:
        before = work.state.rows
        progress = await _run(files, model, ask, dial, work)
        made = formats.finish(work, files.format, files.output, files.skip_bad)
    _summarise(work, progress, before, made, as_json=ask.json)


async def _to_stdout(
    files: FileOptions, model: ModelOptions, ask: AskOptions, dial: DialOptions
) -> None:
    await _run(files, model, ask, dial, _Printer())


async def _run(
    files: FileOptions,
    model: ModelOptions,
    ask: AskOptions,
    dial: DialOptions,
    sink: Sink,
) -> Progress:
    with sources.opened(files.input, files.input_kind, files.text_field, files.id_field) as source:
        rows, position = source.rows, 0
        if isinstance(sink, Journal):
            rows, position = sink.left(rows), sink.position
        async with (
            AsyncClient(ask.router, dial=dial) as client,
            Sender(client, model.model, model.embed_options()) as sender,
        ):
            # A router that is not there at all is told at once; one that is lost is waited for.
            await client.models()
            with Progress(source.size, position, Console(stderr=True)) as progress:
                _leave_on_interrupt(progress, files)
                limits = Limits(model.batch, model.in_flight)
                skip_bad = files.skip_bad is not None
                await run(rows, sender.embed, sink, limits, progress.done, skip_bad=skip_bad)
    return progress


class _Printer:
    """JSON lines to standard output."""

    def append(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Print the rows."""
        sys.stdout.buffer.writelines(formats.to_jsonl([([row.id for row in rows], vectors)]))
        sys.stdout.buffer.flush()

    def checkpoint(self) -> None:
        """Nothing is kept."""


def _is_done(files: FileOptions) -> bool:
    """Whether an earlier run only had to tidy up; raises BadFlag when the output is in the way."""
    if files.restart:
        journal.discard(files.folder)
    exists = files.output.exists()
    if journal.is_finished(files.folder):
        journal.discard(files.folder)
        return exists
    if exists and not files.overwrite:
        raise BadFlag(f"{files.output} exists; --overwrite replaces it")
    return False


def _settings(files: FileOptions, model: ModelOptions) -> dict[str, Any]:
    """What makes the vectors what they are."""
    return {
        "model": model.model,
        "input format": files.input_kind,
        "text field": files.text_field,
        "id field": files.id_field,
        **model.embed_options(),
    }


def _leave_on_interrupt(progress: Progress, files: FileOptions) -> None:
    def leave(*_signal: object) -> NoReturn:
        progress.__exit__(None, None, None)
        kept = files.output != STDOUT
        click.echo("Interrupted." + " The same command goes on from here." * kept, err=True)
        # A thread may wait for standard input for ever, and what is on the disk is good.
        os._exit(130)

    signal.signal(signal.SIGINT, leave)


def _summarise(
    work: Journal, progress: Progress, before: int, made: Sequence[Path], *, as_json: bool
) -> None:
    rate = progress.rows / max(progress.seconds, 1e-9)
    summary: dict[str, Any] = {
        "files": [str(path) for path in made],
        "rows": work.state.written,
        "skipped": work.skipped,
        "dimensions": work.state.width,
        "resumed_at": before,
        "seconds": round(progress.seconds, 3),
        "rows_per_second": round(rate, 1),
    }
    if as_json:
        click.echo(orjson.dumps(summary))
        return
    click.echo(
        f"{work.state.written:,} rows of {work.state.width} numbers in {made[0]}, "
        f"{work.skipped:,} skipped; {progress.seconds:.1f} s, {rate:,.0f} rows/s",
        err=True,
    )
