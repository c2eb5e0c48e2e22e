"""`tensorway check`: whether configuration files are right, and what they would start."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click
import orjson

from tensorway import fleet
from tensorway.flags import BadFlag, argument, command, flag
from tensorway.launches import Launch, plan, this_machine

Kind = Literal["fleet", "router"]

_FILE: Any = click.Path(exists=True, dir_okay=False, path_type=Path)
_SECONDS = 60
_AT_ONCE = 4
_SERVICES = {
    "router": "tensorway-router",
    "embed_worker": "tensorway-embed-worker",
    "encoder_service": "tensorway-encoder",
    "generator_service": "tensorway-generator",
    "rest_shim": "tensorway-rest",
}


@dataclass(frozen=True)
class CheckOptions:
    """Which files."""

    files: tuple[Path, ...] = argument((), type=_FILE)
    kind: Kind | None = flag(None, help="What the files are, in place of guessing.")
    json: bool = flag(False, help="What was found as JSON.")

    def __post_init__(self) -> None:
        if not self.files:
            raise BadFlag("which files? Give a fleet file, or a file of the router's --config")


@dataclass(frozen=True)
class Process:
    """One process that a file would start."""

    name: str
    command: str
    env: dict[str, str]
    error: str = ""
    """What it would say of its flags, if it would not start with them."""


@dataclass(frozen=True)
class Report:
    """What was found in a file."""

    file: str
    kind: Kind
    error: str = ""
    processes: tuple[Process, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.error and not any(process.error for process in self.processes)


@command("tensorway-check", CheckOptions, terse=True)
def check(options: CheckOptions) -> None:
    """Check configuration files.

    tensorway check FILE...: a FILE is what `tensorway up --fleet` or `tensorway-router
    --config` takes. Each process that a fleet would start is asked about its own flags;
    what vLLM makes of flags of its own, only the start shows.

    Exit status: 0 all right, 2 something is wrong.
    """
    reports = [inspect(path, options.kind or guess(path)) for path in options.files]
    if options.json:
        click.echo(orjson.dumps([asdict(report) for report in reports]))
    else:
        for report in reports:
            _show(report)
    if not all(report.is_right for report in reports):
        sys.exit(2)


def guess(path: Path) -> Kind:
    """What a file is, by its keys."""
    try:
        content = tomllib.loads(path.read_text())
    except ValueError:
        return "fleet"
    workers = content.get("workers")
    workers = workers if isinstance(workers, list) else []
    static = any("address" in worker for worker in workers if isinstance(worker, dict))
    return "router" if static or "aliases" in content else "fleet"


def inspect(path: Path, kind: Kind) -> Report:
    """What is in a file."""
    if kind == "router":
        launch = Launch("router", (sys.executable, "-m", "router", "--config", str(path)), stage=0)
        return Report(str(path), kind, ask(launch).removeprefix(f"--config: {path}: "))
    try:
        launches = plan(fleet.load(path), this_machine())
    except BadFlag as error:
        return Report(str(path), kind, str(error).removeprefix(f"--fleet {path}: "))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        errors = list(threads.map(ask, launches))
    return Report(str(path), kind, processes=tuple(map(_process, launches, errors)))


def ask(launch: Launch) -> str:
    """What a process says of its flags; nothing when it would start with them."""
    ran = subprocess.run(  # noqa: S603, it is one of our services
        [*launch.argv, "--dry-run"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    *_, last = ["", *ran.stderr.strip().splitlines()]
    return last.removeprefix("Error: ") if ran.returncode else ""


def _process(launch: Launch, error: str) -> Process:
    _, _, module, *args = launch.argv
    return Process(launch.name, shlex.join([_SERVICES[module], *args]), dict(launch.env), error)


def _show(report: Report) -> None:
    click.echo(f"{report.file}: {'ok' if report.is_right else 'wrong'}, a {report.kind} file")
    if report.error:
        click.echo(f"  {report.error}")
    for process in report.processes:
        settings = "".join(f"{name}={shlex.quote(text)} " for name, text in process.env.items())
        click.echo(f"  {process.name:<9} {settings}{process.command}")
        if process.error:
            click.echo(f"  {'':<9} {process.error}")
