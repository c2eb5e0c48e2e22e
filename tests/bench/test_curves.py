"""How speed grows with work: pure functions, and their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import curves, plots
from bench.curves import Curve, Point
from bench.gpu import make_texts
from bench.measure import Cell
from bench.queued import Waiting, per_token
from bench.repeats import POOL, requests
from bench.report import Row

CURVE = Curve("batch", "batch, one client", "texts in a request")
PNG = b"\x89PNG"


ONE = Cell(1, 1)


def row(speed: float = 0.0, cell: Cell = ONE, subject: str = "router") -> Row:
    """A row of this speed."""
    return Row(subject, cell, 10, 0, 1, 2, 3, 4, speed, 0.1, 0.5, 1, 1)


def points(speeds: dict[int, float]) -> list[Point]:
    """Points of these speeds."""
    return [Point(x, row(speed)) for x, speed in speeds.items()]


@pytest.mark.parametrize(("x", "speed", "times"), [(2, 180, 1.8), (4, 400, 2), (16, 100, 1)])
def test_growth_is_for_twice_the_work(x: int, speed: float, times: float) -> None:
    """However far two points are from each other."""
    first, second = points({1: 100, x: speed})
    assert curves.growth(first, second, CURVE) == pytest.approx(times)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({1: 100, 2: 200, 4: 390, 8: 450, 16: 480}, 4),
        ({1: 100, 2: 200, 4: 210, 8: 390, 16: 400}, 8),
        ({1: 100, 2: 90}, 1),
        ({1: 100, 2: 200, 4: 400}, None),
    ],
    ids=["bends", "one slow turn is no bend", "at once", "not yet"],
)
def test_where_it_bends(speeds: dict[int, float], expected: int | None) -> None:
    """From there on twice the work never gives much more speed."""
    assert curves.bend(points(speeds), CURVE) == expected


def test_table() -> None:
    """A line for each point, and where the curve bends."""
    table = curves.table(points({1: 100, 2: 180, 4: 190}), CURVE)
    assert "| 1 | 100 ± 5% |  | 1.0 | 3.0 | 0.50 |" in table
    assert "| 2 | 180 ± 5% | 1.80 | 1.0 | 3.0 | 0.50 |" in table
    assert "It bends at 2." in table


def test_pictures(tmp_path: Path) -> None:
    """Curves and open loops are drawn, each into a file of its own."""
    curves.draw([(CURVE, points({1: 100, 2: 120}))] * 3, tmp_path / "growth.png")
    opened: Sequence[Row] = [row(10, Cell(batch, 1, rate)) for batch in (1, 15) for rate in (5, 9)]
    drawn = plots.opened([*opened, row(10)], tmp_path)
    assert [path.name for path in drawn] == ["open-1.png", "open-15.png"]
    assert all(p.read_bytes()[:4] == PNG for p in (*drawn, tmp_path / "growth.png"))


def test_bytes_of_a_token() -> None:
    """What was there before anything waited does not count."""
    found = [Waiting(tokens, 100 + tokens * 8 / 2**20) for tokens in (0, 1000, 3000)]
    assert per_token(found) == pytest.approx(8)


def test_repeats_are_from_the_pool() -> None:
    """With this part of its texts a request repeats what both workers have seen."""
    pool = set(make_texts(POOL, 18, 0))
    texts = [
        text
        for _, batch in zip(range(20), requests(50, 0.3, 18, 1), strict=False)
        for text in batch
    ]
    assert 200 < sum(text in pool for text in texts) < 400
    assert len({*next(requests(50, 0, 18, 1)), *next(requests(50, 0, 18, 2))}) == 100
