"""The groups that ``florilegium --help`` lists its commands in, and how a command joins one.

tuning = Group(RUN)                                      # in a file that apps/cli/app.py adds


@tuning.add("florilegium tune digits --trials 20")       # an example, shown in the command's own help
def tune(recipe: Recipe) -> None: ...

Commands of ``florilegium.research`` and of other packages are entry points ``florilegium.commands``: a command's name,
and the group that has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import click
import typer
from typer.core import TyperGroup

from florilegium.apps.cli.completion import use_bash
from florilegium.apps.cli.mirror import mirrored
from florilegium.apps.cli.tables import as_json
from florilegium.apps.origins.package import RESEARCH, has_research, own_entry_points, research
from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry
from florilegium.common.references import resolve

F = TypeVar("F", bound=Callable[..., Any])

RUN = "Run"
INSPECT = "Inspect"
DATA = "Data"
DEVICES = "Devices"
PRIVACY = "Privacy"
STUDIES = "Studies"


class Group(typer.Typer):
    """Commands that are listed together.

    Args:
        title: heading of the list; one of the constants above.
        options: further arguments of :class:`typer.Typer`.
    """

    def __init__(self, title: str, **options: Any) -> None:
        super().__init__(**options)
        self._title = title

    def add(self, example: str, *like: str, listing: bool = False, **options: Any) -> Callable[[F], F]:
        """Return a decorator that makes a function a command of the group.

        Args:
            example: a whole line that could be typed, for the end of the command's help.
            like: functions of the Python interface, such as "running:run": the command's parameters of the same names
                have their defaults and help (:func:`mirrored`).
            listing: whether the command shows a table, and so has ``--json``.
            options: further arguments of :meth:`typer.Typer.command`.
        """
        joined = self.command(rich_help_panel=self._title, epilog=f"Example: {example}", **options)

        def join(command: F) -> F:
            whole = mirrored(command, like) if like else command
            joined(_with_json(whole) if listing else whole)
            return command

        return join


def _with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that shows a table with an option ``--json`` besides its own."""

    @wraps(command)
    def listed(*, json: bool, **own: Any) -> None:
        with as_json() if json else nullcontext():
            command(**own)

    option = Annotated[bool, typer.Option("--json", help="print the rows as JSON")]
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one.replace(kind=keyword) for one in inspect.signature(command).parameters.values()]
    listed.__annotations__ = {**get_type_hints(command, include_extras=True), "json": option}
    own = [one.replace(annotation=listed.__annotations__[one.name]) for one in own]
    listed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, inspect.Parameter("json", keyword, default=False, annotation=option)]
    )
    return listed


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

    def main(self, *args: Any, **options: Any) -> Any:
        """Carry out the command line, or complete it."""
        use_bash()
        return super().main(*args, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that can be imported."""
        own = super().list_commands(ctx)
        return own + [name for name in COMMANDS if name not in own and not self._broken(ctx, name)]

    def _broken(self, ctx: click.Context, name: str) -> bool:
        try:
            return self.get_command(ctx, name) is None
        except ConfigurationError:  # told to whoever names it
            return True
