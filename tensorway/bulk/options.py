"""Flags of embedding a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tensorway._client_requests import DType, EmbedOptions
from tensorway.bulk import formats, sources
from tensorway.flags import BadFlag, argument, flag

STDOUT = Path("-")
_FILE: Any = click.Path(dir_okay=False, path_type=Path)
_FILE_OR_DASH: Any = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_FORMATS: dict[str, formats.Format] = {".jsonl": "jsonl", ".npy": "npy", ".parquet": "parquet"}


@dataclass(frozen=True)
class FileOptions:
    """What to read, and where to write."""

    input: Path = argument(sources.STDIN, type=_FILE_OR_DASH)
    output: Path = flag(
        STDOUT, help="File to write: .jsonl, .npy or .parquet; - prints JSON lines.", type=_FILE
    )
    input_format: sources.InputFormat | None = flag(
        None, help="What the input is, where its name does not say."
    )
    text_field: str = flag("text", help="Field, or column, of the text.")
    id_field: str = flag("", help="Field, or column, of an id; without it, the number of the row.")
    skip_bad: Path | None = flag(
        None,
        help="File for rows that cannot be embedded; without it the first one ends the run.",
        type=_FILE,
    )
    overwrite: bool = flag(False, help="Replace the output file if there is one.")
    restart: bool = flag(False, help="Forget what an interrupted run has done.")

    def __post_init__(self) -> None:
        if self.skip_bad and self.output == STDOUT:
            raise BadFlag("--skip-bad needs --output")
        if self.output != STDOUT and self.output.suffix not in _FORMATS:
            raise BadFlag(f"--output: expected .jsonl, .npy or .parquet, got {self.output.name}")

    @property
    def input_kind(self) -> sources.InputFormat:
        """What the input is."""
        return self.input_format or sources.guess(self.input)

    @property
    def format(self) -> formats.Format:
        """What to write."""
        return _FORMATS[self.output.suffix]

    @property
    def folder(self) -> Path:
        """Where a run's work is until it is whole."""
        return self.output.with_name(f"{self.output.name}.partial")


@dataclass(frozen=True)
class ModelOptions:
    """How to embed."""

    model: str = flag("", help="Model to embed with; needed.")
    dimensions: int | None = flag(
        None, help="Numbers in a vector, for models that allow it.", type=click.IntRange(min=1)
    )
    truncate: int | None = flag(
        None,
        help="Cut texts to so many tokens; -1: to the model's limit. Without it they are bad rows.",
        type=click.IntRange(min=-1),
    )
    prompt_name: str = flag("", help="Named prompt of the model, such as query or document.")
    dtype: DType = flag("float32", help="Type of the numbers.")
    batch: int = flag(128, help="Rows of one request.", type=click.IntRange(1, 2048))
    in_flight: int = flag(
        16, help="Requests that are read and not yet written.", type=click.IntRange(1, 256)
    )

    def __post_init__(self) -> None:
        if not self.model:
            raise BadFlag("--model: which one? `tensorway models` lists what is served")

    def embed_options(self) -> EmbedOptions:
        """The part that a server reads."""
        options = EmbedOptions(dtype=self.dtype)
        if self.dimensions is not None:
            options["dimensions"] = self.dimensions
        if self.truncate is not None:
            options["truncate_prompt_tokens"] = self.truncate
        if self.prompt_name:
            options["prompt_name"] = self.prompt_name
        return options
