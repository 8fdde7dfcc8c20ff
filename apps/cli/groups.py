"""The groups that ``florilegium --help`` lists its commands in, and how a command joins one.

tuning = Group(RUN)                                      # in a file that apps/cli/app.py adds


@tuning.add("florilegium tune digits --trials 20")       # an example, shown in the command's own help
def tune(recipe: Recipe) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer

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

    def add(self, example: str, **options: Any) -> Callable[[F], F]:
        """Return a decorator that makes a function a command of the group.

        Args:
            example: a whole line that could be typed, for the end of the command's help.
            options: further arguments of :meth:`typer.Typer.command`.
        """
        return self.command(rich_help_panel=self._title, epilog=f"Example: {example}", **options)
