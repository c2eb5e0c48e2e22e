"""``python -m bench``: measure ours and its peers, or draw what was measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from bench import measure, report, systems
from bench.jobs import Generator
from bench.measure import Bench, Cell
from bench.options import Cells, Numbers, minilm
from bench.processes import Launcher, leave_on_sigterm
from bench.reference import Reference
from bench.systems import Plan
from bench.witness import Aiperf

# In flight at once: what a worker takes by default. vLLM takes more, and answers minutes later.
MOST_INPUTS = 16384
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def main() -> None:
    """Ours and its peers, on this machine, in one run."""


@main.command()
@click.option("--systems", "names", default="tensorway,vllm", show_default=True,
              help=f"Which to start: {', '.join(systems.SYSTEMS)}.")  # fmt: skip
@click.option("--only", default="", help="Only these subjects of them, e.g. router,vllm-base64.")
@click.option("--batches", type=Numbers(), default="1,15,64", show_default=True)
@click.option("--callers", type=Numbers(), default="1,16", show_default=True)
@click.option("--open", "opened", type=Cells(), default="", help="Open loops: batch:rate,...")
@click.option("--seconds", default=4.0, show_default=True, help="Of each turn.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each at each cell.")
@click.option("--words", default=18, show_default=True, help="In each text.")
@click.option("--generators", default=2, show_default=True, help="Processes that make load.")
@click.option("--model", default="", help="Folder of the model; all-MiniLM-L6-v2 if not given.")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--ours", multiple=True, help="One more flag of our worker; repeat for more.")
@click.option("--env", multiple=True, help="NAME=VALUE for our worker; repeat for more.")
@click.option("--dynamo", default="", help="Python that has ai-dynamo.")
@click.option("--smg", default="smg", help="The smg program.")
@click.option("--aiperf", default="", help="The aiperf program: ask over HTTP with it too.")
@click.option("--out", type=_FOLDER, default=Path("build/bench"), show_default=True)
def run(
    names: str, only: str, batches: list[float], callers: list[float], opened: list[Cell],
    seconds: float, rounds: int, words: int, generators: int, model: str, dtype: str,
    ours: tuple[str, ...], env: tuple[str, ...], dynamo: str, smg: str, aiperf: str, out: Path,
) -> None:  # fmt: skip
    """Start systems, measure them in turns, write table, numbers and pictures."""
    every = [Cell(int(batch), int(count)) for batch in batches for count in callers]
    closed = [cell for cell in every if cell.batch * cell.callers <= MOST_INPUTS]
    for cell in (cell for cell in every if cell not in closed):
        click.echo(f"left out, more inputs than a worker takes: {report.title(cell)}", err=True)
    variables = dict(pair.split("=", 1) for pair in env)
    flags = ("--dtype", dtype, "--enforce-eager")
    plan = Plan(model or minilm(), flags, ours, variables, dynamo=dynamo, smg=smg)
    out.mkdir(parents=True, exist_ok=True)
    leave_on_sigterm()
    with ExitStack() as stack:
        launcher = Launcher(stack, out)
        loads = [
            Generator(launcher.python(f"load{number}", "bench.load", piped=True).child)
            for number in range(generators)
        ]
        for generator in loads:
            launcher.wait_for("a load generator", generator.ready)
        subjects = systems.start(names.split(","), launcher, stack, plan)
        subjects = [s for s in subjects if not only or s.name in only.split(",")]
        if aiperf:
            subjects = systems.witnessed(subjects, Aiperf(aiperf, plan.model, out))
        bench = Bench(loads, Reference(plan.model), words=words, seconds=seconds)
        for name, part in measure.idle_cpu(subjects).items():
            click.echo(f"idle: {name} takes {part:.1%} of a core", err=True)
        turns: list[tuple[str, Cell, measure.Turn]] = []
        try:
            turns.extend(bench.rounds(subjects, [*closed, *opened], rounds))
        finally:
            # A run that is cut short has measured something too.
            write(report.rows(turns), out)


@main.command()
@click.argument("folder", type=_FOLDER)
def draw(folder: Path) -> None:
    """Write the table and the pictures of an earlier run again."""
    write(msgspec.json.decode((folder / "rows.json").read_bytes(), type=list[report.Row]), folder)


def write(rows: Sequence[report.Row], out: Path) -> None:
    """Numbers, table and pictures."""
    from bench import plots

    if not rows:
        return
    ours = "router" if any(row.subject == "router" for row in rows) else rows[0].subject
    (out / "rows.json").write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    table = report.markdown(rows, ours)
    (out / "table.md").write_text(table + "\n")
    plots.draw(rows, out)
    plots.opened(rows, out)
    plots.against(rows, ours, out)
    click.echo(table)


if __name__ == "__main__":
    sys.exit(main())
