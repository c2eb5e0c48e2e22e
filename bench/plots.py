"""The measurements as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import StrMethodFormatter

from bench.report import Row

_SIZE, _DPI = (9, 5), 120
Value = Callable[[Row], float]
_PLOTS: dict[str, tuple[str, Value]] = {
    "prompts": ("prompts/s", lambda row: row.prompts_per_second),
    "p50": ("p50, ms", lambda row: row.p50),
    "p99": ("p99, ms", lambda row: row.p99),
    "cpu": ("CPU seconds for 1000 prompts", lambda row: row.cpu_per_1000),
}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One PNG for each quantity and number of callers, over the batch size."""
    closed = [row for row in rows if not row.cell.rate]
    made = []
    for callers in sorted({row.cell.callers for row in closed}):
        own = [row for row in closed if row.cell.callers == callers]
        for name, (label, value) in _PLOTS.items():
            path = folder / f"{name}-{callers}.png"
            _figure(path, f"{callers} callers, closed loop", label, own, value)
            made.append(path)
    return made


def opened(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One PNG for each batch size of an open loop: p50 (dashed) and p99 over the rate."""
    made = []
    for batch in sorted({row.cell.batch for row in rows if row.cell.rate}):
        own = [row for row in rows if row.cell.rate and row.cell.batch == batch]
        figure, axes = plt.subplots(figsize=_SIZE)
        for subject in dict.fromkeys(row.subject for row in own):
            points = sorted((r for r in own if r.subject == subject), key=lambda r: r.cell.rate)
            rates = [row.cell.rate for row in points]
            (line,) = axes.plot(rates, [row.p99 for row in points], marker="o", label=subject)
            low = [row.p50 for row in points]
            axes.plot(rates, low, marker=".", linestyle="--", color=line.get_color())
        axes.set_yscale("log")
        axes.set_xlabel("requests/s that come")
        axes.set_ylabel("ms since due, p99 and p50 (dashed)")
        axes.set_title(f"batch {batch}, open loop")
        made.append(_save(figure, axes, folder / f"open-{batch}.png"))
    return made


def against(rows: Sequence[Row], ours: str, folder: Path) -> Path:
    """One PNG of how many times the prompts/s of each peer ours has, cell by cell."""
    cells = list(dict.fromkeys(row.cell for row in rows if not row.cell.rate))
    speeds = {(row.cell, row.subject): row.prompts_per_second for row in rows}
    names = [name for name in dict.fromkeys(row.subject for row in rows) if name != ours]
    figure, axes = plt.subplots(figsize=_SIZE)
    for index, name in enumerate(names):
        heights = [speeds.get((cell, ours), nan) / speeds.get((cell, name), nan) for cell in cells]
        left = [at + (index + 0.5) / (len(names) + 1) for at in range(len(cells))]
        axes.bar(left, heights, 1 / (len(names) + 1), label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([at + 0.5 for at in range(len(cells))])
    axes.set_xticklabels([f"{cell.batch} x {cell.callers}" for cell in cells], rotation=45)
    axes.set_xlabel("batch x callers")
    axes.set_ylabel(f"prompts/s of {ours} / of the other")
    return _save(figure, axes, folder / "ratios.png")


def _figure(path: Path, title: str, label: str, rows: Sequence[Row], value: Value) -> None:
    figure, axes = plt.subplots(figsize=_SIZE)
    for subject in dict.fromkeys(row.subject for row in rows):
        own = sorted((r for r in rows if r.subject == subject), key=lambda row: row.cell.batch)
        axes.plot([r.cell.batch for r in own], list(map(value, own)), marker="o", label=subject)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    batches = sorted({row.cell.batch for row in rows})
    axes.set_xticks(batches, list(map(str, batches)))
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("texts in a request")
    axes.set_ylabel(label)
    axes.set_title(title)
    _save(figure, axes, path)


def _save(figure: Any, axes: Any, path: Path) -> Path:
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path
