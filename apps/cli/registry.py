"""Commands from outside this folder: those of ``florilegium.research``, and those of other packages.

They are entry points ``florilegium.commands``, each a command's name and the group (:class:`typer.Typer`) that has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer
from typer.core import TyperGroup

from florilegium.apps.origins.app_folder import own_entry_points
from florilegium.apps.origins.research import RESEARCH, has_research, research
from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry
from florilegium.common.references import resolve

COMMANDS: Registry[typer.Typer] = Registry("command", "a command", {})


def own_groups() -> Iterator[typer.Typer]:
    """Yield the groups of commands that this package declares; none where their code is not installed."""
    if has_research():
        yield from map(resolve, dict.fromkeys(own_entry_points("florilegium.commands").values()))


class Commands(TyperGroup):
    """The commands of the program. Installed packages are searched for one only if its name is not among the others."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; None if there is none.

        Raises:
            ConfigurationError: if it is known but cannot be imported; the message says why.
        """
        found = super().get_command(ctx, cmd_name)
        if found is not None or cmd_name not in [*COMMANDS]:
            return found
        if (reference := COMMANDS.reference(cmd_name)).startswith(RESEARCH):
            research(reference, cmd_name)
        return typer.main.get_group(COMMANDS[cmd_name]).commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that can be imported."""
        own = super().list_commands(ctx)
        return own + [name for name in COMMANDS if name not in own and not self._broken(ctx, name)]

    def _broken(self, ctx: click.Context, name: str) -> bool:
        try:
            return self.get_command(ctx, name) is None
        except ConfigurationError:  # told to whoever names it
            return True
