"""`tensorway completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import get_completion_class

from tensorway.flags import BadFlag, argument, command

_SHELLS: Any = click.Choice(("bash", "zsh", "fish"))


@dataclass(frozen=True)
class CompletionOptions:
    """For which shell."""

    shell: str = argument("", type=_SHELLS)


@command("tensorway-completion", CompletionOptions, terse=True)
def completion(options: CompletionOptions) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(tensorway completion bash)"                    in ~/.bashrc
    zsh:   eval "$(tensorway completion zsh)"                     in ~/.zshrc
    fish:  tensorway completion fish > ~/.config/fish/completions/tensorway.fish
    """  # noqa: D301, click reads \b as "leave these lines alone"
    from tensorway.cli import main

    found = get_completion_class(options.shell)
    if found is None:
        raise BadFlag("which shell? bash, zsh or fish")
    click.echo(found(main, {}, "tensorway", "_TENSORWAY_COMPLETE").source())
