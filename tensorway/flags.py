"""Command-line flags, each declared once: a typed field of a frozen dataclass.

>>> @dataclass(frozen=True)
... class RouterOptions:
...     policy: Literal["least_work", "round_robin"] = flag("least_work", help="How to balance.")

``command("tensorway-router", RouterOptions)`` makes a click command of it, with the
flag ``--policy`` and the variable ``TENSORWAY_ROUTER_POLICY``. A flag on the command
line beats the environment, which beats the default; click refuses bad values and
names the flag.
"""

from __future__ import annotations

import dataclasses
import errno
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click


class BadFlag(ValueError):
    """A value that cannot work, or that another flag contradicts; the message names the flags.

    Raised anywhere under a :func:`command`, it ends the process with one line and status 2.
    """


class _Refused(click.ClickException):
    exit_code = 2


def flag(default: Any, *, help: str, type: click.ParamType[Any] | None = None) -> Any:
    """A dataclass field that is also a command-line flag.

    ``None`` as the default of an optional field means that the flag is not given.
    """
    return dataclasses.field(default=default, metadata={"help": help, "type": type})


def argument(default: Any, *, type: click.ParamType[Any] | None = None) -> Any:
    """A dataclass field that is given by its place; the command's docstring explains it.

    A tuple takes any number of values.
    """
    metadata = {"help": "", "type": type, "argument": True}
    return dataclasses.field(default=default, metadata=metadata)


def command(
    name: str,
    *groups: type,
    extra_args: bool = False,
    check: Callable[[tuple[str, ...]], None] | None = None,
    terse: bool = False,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a click command that calls the function with one value of each group.

    With ``extra_args``, what no flag of ours takes is kept in order and passed last,
    as a tuple of strings; ``check`` raises BadFlag for what must not be among it. With
    ``terse`` the help leaves out variables, and defaults that say nothing, but they work all
    the same; a write that fails, as to a full disk, is told in one line. Without it there is
    ``--dry-run``, by which `tensorway check` asks a service.
    """
    dry_run = click.Option(["--dry-run"], is_flag=True, help="Check the flags, and stop.")

    def decorate(function: Callable[..., None]) -> click.Command:
        def callback(*, dry_run: bool = False, **values: Any) -> None:
            extra = (tuple(click.get_current_context().args),) if extra_args else ()
            try:
                parsed = [build(group, values) for group in groups]
                if check is not None:
                    check(*extra)
                if not dry_run:
                    function(*parsed, *extra)
            except BadFlag as error:
                raise _Refused(str(error)) from error
            except OSError as error:
                # A service's log has all of it; a person is told what it is about. A reader
                # who left is click's to deal with.
                if not terse or error.errno == errno.EPIPE:
                    raise
                raise click.ClickException(str(error)) from error

        return click.Command(
            name,
            params=[
                *(param for group in groups for param in options(group, terse=terse)),
                *(() if terse else (dry_run,)),
            ],
            callback=callback,
            help=function.__doc__,
            context_settings={
                "auto_envvar_prefix": name.upper().replace("-", "_"),
                "ignore_unknown_options": extra_args,
                "allow_extra_args": extra_args,
                "show_default": True,
                "max_content_width": 100,
            },
        )

    return decorate


def options(group: type, *, terse: bool = False) -> list[click.Parameter]:
    """The click options and arguments of a dataclass, one for each field."""
    hints = get_type_hints(group)
    return [
        _argument(field, hints[field.name])
        if "argument" in field.metadata
        else _option(field, hints[field.name], terse=terse)
        for field in dataclasses.fields(group)
        if "help" in field.metadata
    ]


def build(group: type, values: dict[str, Any]) -> Any:
    """Take a dataclass's own values out of everything that was parsed."""
    return group(**{name: value for name, value in values.items() if name in _names(group)})


def _names(group: type) -> set[str]:
    return {field.name for field in dataclasses.fields(group)}


def _argument(field: dataclasses.Field[Any], hint: Any) -> click.Argument:
    if get_origin(hint) is tuple:
        return click.Argument([field.name], nargs=-1, type=field.metadata["type"])
    # click knows "-" only as a string.
    default = str(field.default) if isinstance(field.default, Path) else field.default
    kind = field.metadata["type"]
    return click.Argument([field.name], default=default, required=False, type=kind)


def _option(field: dataclasses.Field[Any], hint: Any, *, terse: bool) -> click.Option:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not types.NoneType)
    name = "--" + field.name.replace("_", "-")
    common = {"default": field.default, "help": field.metadata["help"], "show_envvar": not terse}
    if terse and not field.default:
        common["show_default"] = False
    if hint is bool:
        if terse and not field.default:
            return click.Option([name], is_flag=True, **common)
        return click.Option([f"{name}/--no-{name[2:]}"], **common)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
        common["multiple"] = True
    return click.Option([name], type=field.metadata["type"] or _param_type(hint), **common)


def _param_type(hint: Any) -> click.ParamType[Any] | type:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if hint is Path:
        return click.Path(exists=True, dir_okay=False, path_type=Path)
    return hint  # type: ignore[no-any-return]
