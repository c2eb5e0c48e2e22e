"""Flags: declared once, read from the command line, the environment, or the default."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from tensorway import options
from tensorway.flags import BadFlag, argument, command, flag
from tensorway.options import DialOptions, ListenOptions, ObserveOptions, RegisterOptions, Seconds


@dataclass(frozen=True)
class Options:
    """One flag of each type."""

    name: str = flag("fallback", help="A text.")
    count: int = flag(1, help="A whole number.", type=click.IntRange(1, 9))
    ratio: float | None = flag(None, help="A number, or nothing.")
    wait: float = flag(1.0, help="Seconds.", type=Seconds(min=0))
    fast: bool = flag(True, help="A switch.")
    mode: Literal["a", "b"] | None = flag(None, help="A choice.")
    file: Path | None = flag(None, help="A file.")
    router: tuple[str, ...] = flag((), help="Several texts.")
    sizes: tuple[int, ...] = flag((), help="Several numbers.")
    internal: str = "no flag"


@dataclass(frozen=True)
class Other:
    """A second group."""

    other: str = flag("x", help="A text.")


class Parsed:
    """What the last run of the command was called with."""

    values: tuple[Any, ...] = ()


def run(*args: str, extra_args: bool = False, **env: str) -> Result:
    """Run a command of both groups."""

    @command("tensorway-some-tool", Options, Other, extra_args=extra_args)
    def main(*values: Any) -> None:
        """Help of the tool."""
        Parsed.values = values

    variables = {f"TENSORWAY_SOME_TOOL_{name.upper()}": value for name, value in env.items()}
    return CliRunner(env=variables).invoke(main, args)


def parsed(*args: str, **env: str) -> Options:
    """The options of a run that succeeds."""
    result = run(*args, **env)
    assert result.exit_code == 0, result.output
    options: Options = Parsed.values[0]
    return options


def test_defaults() -> None:
    """Nothing given is the dataclass as it is, each group in its own object."""
    assert parsed() == Options()
    assert Parsed.values == (Options(), Other())


def test_flag_beats_environment_beats_default() -> None:
    """The order of precedence."""
    assert parsed().name == "fallback"
    assert parsed(name="env").name == "env"
    assert parsed("--name", "flag", name="env").name == "flag"


def test_every_type() -> None:
    """Each type is parsed to what its field says."""
    here = str(Path(__file__))
    args = ["--count", "3", "--ratio", "0.5", "--wait", "2", "--no-fast", "--mode", "b"]
    options = parsed(*args, "--file", here, "--router", "a:1", "--router", "b:2", "--sizes", "4")
    assert options == Options(
        count=3,
        ratio=0.5,
        wait=2.0,
        fast=False,
        mode="b",
        file=Path(here),
        router=("a:1", "b:2"),
        sizes=(4,),
    )


def test_every_type_from_the_environment() -> None:
    """The same from variables; several values are separated by spaces."""
    here = str(Path(__file__))
    env = {"count": "3", "ratio": "0.5", "mode": "b", "file": here, "router": "a:1 b:2"}
    options = parsed(**env, sizes="4 5")
    assert (options.count, options.ratio, options.mode) == (3, 0.5, "b")
    assert (options.file, options.router, options.sizes) == (Path(here), ("a:1", "b:2"), (4, 5))


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "FALSE"])
def test_false_from_the_environment(text: str) -> None:
    """The text "false" is not true."""
    assert parsed(fast=text).fast is False


@pytest.mark.parametrize("text", ["true", "1", "yes", "on"])
def test_true_from_the_environment(text: str) -> None:
    """A variable turns a switch on as well as off."""
    assert parsed("--no-fast").fast is False
    assert parsed(fast=text).fast is True


def test_an_empty_variable_is_not_given() -> None:
    """Deployment tools often set a variable to nothing."""
    assert parsed(file="", ratio="", count="", router="", fast="") == Options()


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--count", "three"], "--count"),
        (["--count", "10"], "--count"),
        (["--ratio", "half"], "--ratio"),
        (["--wait", "-1"], "--wait"),
        (["--wait", "nan"], "--wait"),
        (["--wait", "inf"], "--wait"),
        (["--mode", "c"], "--mode"),
        (["--file", "/no/such/file"], "--file"),
        (["--file", "/"], "--file"),
        (["--sizes", "x"], "--sizes"),
        (["--unknown"], "--unknown"),
        (["stray"], "stray"),
        (["--name"], "--name"),
    ],
)
def test_bad_values_stop_the_process(args: list[str], name: str) -> None:
    """A bad value ends with status 2 and the flag's name, before anything runs."""
    Parsed.values = ()
    result = run(*args)
    assert (result.exit_code, Parsed.values) == (2, ())
    assert name in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("name", "text"), [("count", "0"), ("fast", "maybe"), ("mode", "c"), ("file", "/no/such")]
)
def test_bad_variables_stop_the_process(name: str, text: str) -> None:
    """A bad value from the environment is refused like one from the command line."""
    result = run(**{name: text})
    assert result.exit_code == 2
    assert f"--{name}" in result.output


def test_flags_that_contradict_each_other() -> None:
    """What only shows when a service starts ends with one line too."""

    @command("tool", Other)
    def main(options: Other) -> None:
        raise BadFlag("--a needs --b")

    result = CliRunner().invoke(main)
    assert (result.exit_code, result.output) == (2, "Error: --a needs --b\n")


def test_extra_arguments_keep_their_order() -> None:
    """What is not ours is handed on, as vLLM's flags are; ours are taken out wherever they are."""
    result = run("model", "--dtype", "half", "--name", "n", "-tp", "2", "--x=1", extra_args=True)
    assert result.exit_code == 0
    options, _, extra = Parsed.values
    assert options.name == "n"
    assert extra == ("model", "--dtype", "half", "-tp", "2", "--x=1")


def test_help_tells_everything() -> None:
    """The help shows each flag, its variable, its default, and no secret names."""
    text = run("--help").output
    assert "Help of the tool." in text
    assert "--count" in text
    assert "TENSORWAY_SOME_TOOL_COUNT" in text
    assert "fallback" in text
    assert "--fast / --no-fast" in text
    assert "internal" not in text


@pytest.mark.parametrize("group", [ListenOptions, DialOptions, ObserveOptions, RegisterOptions])
def test_the_shared_options_are_a_command(group: type) -> None:
    """Every group that services share parses to its own defaults."""
    seen: list[Any] = []
    result = CliRunner().invoke(command("tool", group)(seen.append), [])
    assert result.exit_code == 0, result.output
    assert seen == [group()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("grace", "nan"),
        ("default-timeout", "0"),
        ("max-message-mib", "0"),
        ("max-message-mib", "2048"),
    ],
)
def test_shared_options_have_bounds(name: str, text: str) -> None:
    """A port beyond 16 bits, a deadline of nothing, a limit of nothing or over 2 GiB."""
    result = CliRunner().invoke(command("tool", ListenOptions)(print), [f"--{name}", text])
    assert result.exit_code == 2
    assert f"--{name}" in result.output


@dataclass(frozen=True)
class Placed:
    """Values that are given by their places."""

    first: Path = argument(Path("-"), type=click.Path(path_type=Path))
    rest: tuple[int, ...] = argument((), type=click.INT)
    loud: bool = flag(False, help="A switch.")
    name: str = flag("", help="A text.")
    count: int = flag(3, help="A number.")


def test_arguments_have_places() -> None:
    """They need no names, and are absent by default."""
    seen: list[Any] = []
    main = command("tool", Placed)(seen.append)
    for args in ([], ["a", "1", "2", "--loud"]):
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
    assert seen == [Placed(), Placed(Path("a"), (1, 2), loud=True)]
    assert CliRunner().invoke(main, ["a", "b"]).exit_code == 2


def test_terse_help() -> None:
    """Variables and defaults that say nothing are left out, and the variables still work."""
    seen: list[Any] = []
    main = command("tool", Placed, terse=True)(seen.append)
    text = CliRunner().invoke(main, ["--help"]).output
    assert "TOOL_" not in text
    assert re.findall(r"default: ([^\]]*)", text) == ["3"]
    assert "no-loud" not in text
    assert "dry-run" not in text
    CliRunner(env={"TOOL_LOUD": "1", "TOOL_COUNT": "4"}).invoke(main, [])
    assert seen == [Placed(loud=True, count=4)]


def test_a_dry_run_checks_and_does_nothing() -> None:
    """Flags are checked, also those that are handed on; the function is not called."""
    seen: list[Any] = []

    def check(extra: tuple[str, ...]) -> None:
        if "--wrong" in extra:
            raise BadFlag("--wrong: is wrong")

    main = command("tool", Other, extra_args=True, check=check)(lambda *args: seen.append(args))
    assert CliRunner().invoke(main, ["--dry-run", "a"]).exit_code == 0
    for args in (["--dry-run", "a", "--wrong"], ["a", "--wrong"]):
        result = CliRunner().invoke(main, args)
        assert (result.exit_code, result.output) == (2, "Error: --wrong: is wrong\n")
    assert seen == []
    CliRunner().invoke(main, ["a", "--right"])
    assert seen == [(Other(), ("a", "--right"))]


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        pytest.param(
            options.ADDRESS,
            ("host:1", "[::1]:65535", "10.0.0.1:50051"),
            ("host", "host:", ":1", "host:65536", "host:-1", "a b:1"),
            id="address",
        ),
        pytest.param(
            options.TARGET,
            (
                "host:1",
                "dns:///router:50051",
                "unix:/run/router.sock",
                "ipv4:10.0.0.1:1,10.0.0.2:1",
            ),
            ("host", "http://host:1", "https://host", ""),
            id="target",
        ),
        pytest.param(
            options.OTLP,
            ("http://127.0.0.1:4317", "https://collector", "http://[::1]:4317/"),
            ("localhost:4317", "nonsense", "http://", "http://collector", "http://h:99999"),
            id="otlp",
        ),
    ],
)
def test_forms_of_text(kind: options.Matching, right: tuple[str, ...], wrong: tuple[str, ...]):
    """Addresses and URLs are refused when they are parsed, with what was expected."""
    assert [kind.convert(text, None, None) for text in right] == list(right)
    for text in wrong:
        with pytest.raises(click.BadParameter, match=f"expected {kind.name}"):
            kind.convert(text, None, None)


def test_a_failed_write_is_one_line() -> None:
    """A person reads what went wrong, as a full disk; a service's log has the traceback."""

    def full() -> None:
        """Write to a full disk."""
        raise OSError(errno.ENOSPC, "No space left on device", "out.npy")

    result = CliRunner().invoke(command("tensorway-tool", terse=True)(full), [])
    assert result.exit_code == 1
    assert result.output == "Error: [Errno 28] No space left on device: 'out.npy'\n"
    result = CliRunner().invoke(command("tensorway-service")(full), [])
    assert isinstance(result.exception, OSError)
