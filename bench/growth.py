"""What more work costs: ``python -m bench.growth``, speed over batch, clients, length, workers.

Each curve changes one thing and leaves all else as it is; its points are measured in turns.
Workers are measured twice: with the real engine, one core to each, and with a fake engine
that waits as a GPU's engine would, where only our own services use the cores.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

import click

from bench import curves, queued, systems
from bench.curves import Curve, Point
from bench.jobs import Generator
from bench.measure import Bench, Cell, Turn
from bench.options import Numbers, minilm
from bench.processes import Launcher, leave_on_sigterm
from bench.report import rows
from bench.systems import Plan, Subject

POWERS = [2**power for power in range(11)]
LENGTHS = [8, 32, 128, 512, 2048, 8192]
SPECIAL_TOKENS = 2
# The shape of Qwen3-Embedding, small enough for a core; what matters is how it grows.
_LONG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256,
    "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 30592, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8448, "hidden_act": "silu", "tie_word_embeddings": True,
    "rope_theta": 1e6, "torch_dtype": "bfloat16", "bos_token_id": 101, "eos_token_id": 102,
}  # fmt: skip
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_CPU = ("--dtype", "bfloat16", "--enforce-eager")
# A step of 16 inputs is 10 ms of waiting: an engine on a GPU, as far as our cores can tell.
_WAITS = ("--engine", "fake", "--step-seconds", "0.01", "--max-model-len", "256")


class Part(NamedTuple):
    """One curve, and what has to run for it."""

    curve: Curve
    plans: dict[str, Plan]
    """By name of what is asked."""
    cells: list[Cell]
    x: Callable[[str, Cell], int]


def parts(folder: Path, real_workers: Sequence[int]) -> dict[str, Part]:
    """Everything that is measured, by name."""
    plan = Plan(minilm(), _CPU)
    # The load's texts come again, and kept prefixes would make long ones look cheap.
    uncached = ("--load-format", "dummy", "--no-enable-prefix-caching")
    long = Plan(str(long_model(folder)), (*_CPU, *uncached))
    real = {str(n): Plan(plan.model, _CPU, workers=n) for n in real_workers}
    fake = {str(n): Plan("m", (), _WAITS, workers=n) for n in (1, 2, 3, 4)}
    full = [Cell(64, 4, words=18)]
    tokens = Curve(
        "length", "length of a text, one a request", "tokens of a text", "tokens/s",
        lambda point: point.row.prompts_per_second * point.x,
    )  # fmt: skip
    return {
        "batch": Part(
            Curve("batch", "batch, one client", "texts in a request"),
            {"": plan}, [Cell(n, 1, words=18) for n in POWERS], lambda _, cell: cell.batch,
        ),
        "clients": Part(
            Curve("clients", "clients, one text a request", "clients"),
            {"": plan}, [Cell(1, n, words=18) for n in POWERS[:9]], lambda _, cell: cell.callers,
        ),
        "length": Part(
            tokens, {"": long}, [Cell(1, 1, words=n - SPECIAL_TOKENS) for n in LENGTHS],
            lambda _, cell: cell.words + SPECIAL_TOKENS,
        ),
        "workers": Part(
            Curve("workers", "workers, a core each", "workers"),
            real, full, lambda name, _: int(name),
        ),
        "waiting": Part(
            Curve("waiting", "workers whose engine waits", "workers"),
            fake, [Cell(256, 4, words=8)], lambda name, _: int(name),
        ),
    }  # fmt: skip


def long_model(folder: Path) -> Path:
    """A folder of a model for long texts, with MiniLM's tokenizer and no weights."""
    path = folder / "long"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(_LONG))
    for name in _TOKENIZER:
        shutil.copy(Path(minilm()) / name, path)
    return path


def measure(part: Part, loads: Sequence[Generator], seconds: float, rounds: int) -> list[Point]:
    """Start what a part needs, and measure its points in turns."""
    with ExitStack() as stack:
        launcher = Launcher(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        subjects = [_router(name, plan, launcher, stack) for name, plan in part.plans.items()]
        bench = Bench(loads, None, words=0, seconds=seconds)
        found = rows(_turns(bench, subjects, part.cells, rounds))
    points = (Point(part.x(row.subject, row.cell), row) for row in found)
    return sorted(points, key=lambda point: point.x)


def _router(name: str, plan: Plan, launcher: Launcher, stack: ExitStack) -> Subject:
    return systems.start(["tensorway"], launcher, stack, plan)[0]._replace(name=name)


def _turns(
    bench: Bench, subjects: Sequence[Subject], cells: Sequence[Cell], rounds: int
) -> Iterator[tuple[str, Cell, Turn]]:
    # Up and down, so that no point has all the quiet or all the late minutes.
    for number in range(rounds):
        yield from bench.rounds(subjects, cells[:: -1 if number % 2 else 1], 1)


@click.command()
@click.option("--only", default="", help="Only these: batch,clients,length,workers,waiting,queued.")
@click.option("--seconds", default=2.0, show_default=True, help="Of each turn.")
@click.option("--rounds", default=2, show_default=True, help="Turns of each point.")
@click.option("--workers", type=Numbers(), default="1,2", show_default=True,
              help="How many, with the real engine.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/growth"))
def main(only: str, seconds: float, rounds: int, workers: list[float], out: Path) -> None:
    """Print how speed and memory grow with work, and draw it."""
    leave_on_sigterm()
    out.mkdir(parents=True, exist_ok=True)
    wanted = only.split(",") if only else [*parts(out, []), "queued"]
    told, drawn = (out / "growth.md").open("w"), []
    with ExitStack() as stack:
        stack.enter_context(told)
        launcher = Launcher(stack, out)
        loads = [
            Generator(launcher.python(f"load{number}", "bench.load", piped=True).child)
            for number in range(2)
        ]
        for load in loads:
            launcher.wait_for("a load generator", load.ready)
        for name, part in parts(out, [int(n) for n in workers]).items():
            if name in wanted:
                points = measure(part, loads, seconds, rounds)
                drawn.append((part.curve, points))
                _tell(curves.table(points, part.curve), told)
        if "queued" in wanted:
            _tell(queued.table(queued.measure([0, 8, 16, 32, 64])), told)
    if drawn:
        curves.draw(drawn, out / "growth.png")


def _tell(table: str, file: TextIO) -> None:
    # At once, for a run that is cut short has measured something too.
    click.echo(table)
    print(table, file=file, flush=True)


if __name__ == "__main__":
    main()
