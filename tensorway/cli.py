"""The `tensorway` command, for people."""

from __future__ import annotations

from importlib import import_module

import click

from tensorway import __version__

COMMANDS = (
    *("up", "demo", "check", "models", "workers"),
    *("embed", "generate", "bench", "completion"),
)


class _Commands(click.Group):
    """Commands by name; what a command needs is imported when it is used."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"tensorway.commands.{name}"), name)
        return command


@click.command(cls=_Commands)
@click.version_option(__version__, package_name="tensorway", message="tensorway %(version)s")
def main() -> None:
    """Serve embedding models over gRPC, and look at what is served."""


if __name__ == "__main__":
    main()
