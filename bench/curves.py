"""How speed grows with work, as a table and a picture; pure but for the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from bench.report import Row

_SIZE, _DPI = (13, 8), 110
# Twice the work that gives less than this many times the speed: here a curve bends.
BEND = 1.25


class Point(NamedTuple):
    """A row, and how much work it was."""

    x: int
    row: Row


class Curve(NamedTuple):
    """Speed over one kind of work; all else stays the same."""

    name: str
    title: str
    label: str
    """What grows."""
    unit: str = "prompts/s"
    value: Callable[[Point], float] = lambda point: point.row.prompts_per_second


def growth(before: Point, after: Point, curve: Curve) -> float:
    """How many times the speed twice the work gives, between two points."""
    times = curve.value(after) / curve.value(before)
    return float(times ** (1 / log2(after.x / before.x)))


def bend(points: Sequence[Point], curve: Curve) -> int | None:
    """The amount of work from which on more of it gives little more speed; None: not seen.

    Little it must stay: one slow turn is no bend.
    """
    pairs = list(pairwise(points))
    for index, (before, _) in enumerate(pairs):
        if all(growth(*pair, curve) < BEND for pair in pairs[index:]):
            return before.x
    return None


def table(points: Sequence[Point], curve: Curve) -> str:
    """A line for each amount of work."""
    lines = [
        f"### {curve.title}",
        "",
        f"| {curve.label} | {curve.unit} | times, if twice | p50, ms | p99, ms | CPU s/1000 |",
        "| ---: " * 6 + "|",
    ]
    for before, point in zip((None, *points), points, strict=False):
        row, times = point.row, f"{growth(before, point, curve):.2f}" if before else ""
        speed = f"{curve.value(point):.0f} ± {row.spread / 2:.0%}"
        cells = (f"{row.p50:.1f}", f"{row.p99:.1f}", f"{row.cpu_per_1000:.2f}")
        lines.append(f"| {point.x} | {speed} | {times} | {' | '.join(cells)} |")
    found = bend(points, curve)
    return "\n".join([*lines, "", f"It bends at {found}." if found else "No bend is seen.", ""])


def draw(curves: Sequence[tuple[Curve, Sequence[Point]]], path: Path) -> None:
    """One picture of all curves."""
    figure, axes = plt.subplots(2, (len(curves) + 1) // 2, figsize=_SIZE, squeeze=False)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    for axis, (curve, points) in zip(axes.flat, curves, strict=False):
        axis.plot([p.x for p in points], [curve.value(p) for p in points], marker="o")
        if (found := bend(points, curve)) is not None:
            axis.axvline(found, color="grey", linestyle=":", label=f"bends at {found}")
            axis.legend(fontsize="small")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set(xlabel=curve.label, ylabel=curve.unit, title=curve.title)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
