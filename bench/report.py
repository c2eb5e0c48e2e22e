"""What was measured, as numbers, as a table and as ratios; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from bench.measure import Cell, Turn

_COLUMNS = "| subject | requests | p50 | p90 | p99 | max | prompts/s | CPU s/1000 | MiB | cosine |"


class Row(msgspec.Struct):
    """One subject at one cell, over all rounds; latencies in ms."""

    subject: str
    cell: Cell
    requests: int
    failures: int
    p50: float
    p90: float
    p99: float
    max: float
    prompts_per_second: float
    spread: float
    """Slowest and fastest round, as a part of the mean."""
    cpu_per_1000: float
    """CPU seconds of the system for 1000 prompts."""
    peak_mib: float
    cosine: float


def rows(turns: Iterable[tuple[str, Cell, Turn]]) -> list[Row]:
    """Turns of the same subject and cell, put together."""
    found: dict[tuple[Cell, str], list[Turn]] = {}
    for subject, cell, turn in turns:
        found.setdefault((cell, subject), []).append(turn)
    # The same order everywhere: that of the first cell's first round.
    cells, names = (list(dict.fromkeys(key[part] for key in found)) for part in (0, 1))
    order = sorted(found, key=lambda key: (cells.index(key[0]), names.index(key[1])))
    return [_row(subject, cell, found[cell, subject]) for cell, subject in order]


def _row(subject: str, cell: Cell, turns: Sequence[Turn]) -> Row:
    latencies = np.array([one for turn in turns for one in turn.latencies] or [np.nan])
    p50, p90, p99 = map(float, np.percentile(latencies, (50, 90, 99)))
    prompts = cell.batch * sum(len(turn.latencies) for turn in turns)
    speeds = [cell.batch * len(turn.latencies) / turn.seconds for turn in turns]
    speed = prompts / sum(turn.seconds for turn in turns)
    return Row(
        subject=subject,
        cell=cell,
        requests=prompts // cell.batch,
        failures=sum(turn.failures for turn in turns),
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(latencies.max()),
        prompts_per_second=speed,
        spread=(max(speeds) - min(speeds)) / speed if speed else 0.0,
        cpu_per_1000=sum(turn.cpu for turn in turns) / prompts * 1000 if prompts else 0.0,
        peak_mib=max(turn.peak for turn in turns),
        cosine=min(turn.cosine for turn in turns),
    )


def title(cell: Cell) -> str:
    """A cell in words."""
    load = f"{cell.rate:g} requests/s" if cell.rate else f"{cell.callers} callers"
    return f"batch {cell.batch}, {load}"


def markdown(rows: Sequence[Row], ours: str) -> str:
    """A table for each cell, then how ours compares with each other subject."""
    parts = []
    for cell in dict.fromkeys(row.cell for row in rows):
        parts += [f"### {title(cell)}", "", _COLUMNS, "| --- " + "| ---: " * 9 + "|"]
        parts += [*(_line(row) for row in rows if row.cell == cell), ""]
    return "\n".join([*parts, *ratios(rows, ours)])


def _line(row: Row) -> str:
    times = (f"{value:.1f}" for value in (row.p50, row.p90, row.p99, row.max))
    failed = f" ({row.failures} failed)" if row.failures else ""
    speed = f"{row.prompts_per_second:.0f} ± {row.spread / 2:.0%}"
    cost = (f"{row.cpu_per_1000:.2f}", f"{row.peak_mib:.0f}", f"{row.cosine:.4f}")
    cells = (row.subject, f"{row.requests}{failed}", *times, speed, *cost)
    return f"| {' | '.join(cells)} |"


def ratios(rows: Sequence[Row], ours: str) -> list[str]:
    """Ours against each: prompts/s over theirs, and their p50 and p99 over ours."""
    names = [name for name in dict.fromkeys(row.subject for row in rows) if name != ours]
    lines = [f"### `{ours}` against each: prompts/s, p50, p99 (above 1 is better)", ""]
    lines += [f"| cell | {' | '.join(names)} |", "| --- " + "| ---: " * len(names) + "|"]
    for cell in dict.fromkeys(row.cell for row in rows):
        at = {row.subject: row for row in rows if row.cell == cell}
        if ours in at:
            against = (_ratio(at[ours], at.get(name)) for name in names)
            lines.append(f"| {title(cell)} | {' | '.join(against)} |")
    return lines


def _ratio(ours: Row, peer: Row | None) -> str:
    if peer is None:
        return "-"
    speed = ours.prompts_per_second / peer.prompts_per_second
    return f"{speed:.2f}, {peer.p50 / ours.p50:.2f}, {peer.p99 / ours.p99:.2f}"
