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


def command(
    name: str, *groups: type, extra_args: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a click command that calls the function with one value of each group.

    With ``extra_args``, what no flag of ours takes is kept in order and passed last,
    as a tuple of strings.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        def callback(**values: Any) -> None:
            extra = (tuple(click.get_current_context().args),) if extra_args else ()
            try:
                parsed = [build(group, values) for group in groups]
                function(*parsed, *extra)
            except BadFlag as error:
                raise _Refused(str(error)) from error

        return click.Command(
            name,
            params=[param for group in groups for param in options(group)],
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


def options(group: type) -> list[click.Option]:
    """The click options of a dataclass, one for each field."""
    hints = get_type_hints(group)
    return [
        _option(field, hints[field.name])
        for field in dataclasses.fields(group)
        if "help" in field.metadata
    ]


def build(group: type, values: dict[str, Any]) -> Any:
    """Take a dataclass's own values out of everything that was parsed."""
    return group(**{name: value for name, value in values.items() if name in _names(group)})


def _names(group: type) -> set[str]:
    return {field.name for field in dataclasses.fields(group)}


def _option(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not types.NoneType)
    name = "--" + field.name.replace("_", "-")
    common = {"default": field.default, "help": field.metadata["help"], "show_envvar": True}
    if hint is bool:
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
