"""The command line in the documentation, from the commands' own declarations: what each does, takes and prints."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer


def command_reference() -> str:
    """Return all commands in Markdown: a section for each group, a table of arguments and options for each command."""
    from florilegium.apps.cli.app import cli

    root = typer.main.get_command(cli)
    assert isinstance(root, click.Group)
    sections: dict[str, list[str]] = {}
    for words, panel, command in _commands(root, "florilegium", ""):
        sections.setdefault(panel, []).append(_described(words, command))
    return "\n".join(f"## {panel}\n\n" + "\n".join(commands) for panel, commands in sections.items())


def _commands(group: click.Group, words: str, panel: str) -> Iterator[tuple[str, str, click.Command]]:
    """Yield the words of each command, the title of its group, and the command itself."""
    for name, command in group.commands.items():
        title = panel or str(getattr(command, "rich_help_panel", ""))
        if isinstance(command, click.Group):
            yield from _commands(command, f"{words} {name}", title)
        else:
            yield f"{words} {name}", title, command


def _described(words: str, command: click.Command) -> str:
    context = click.Context(command)
    usage = " ".join([words, *(piece for piece in command.collect_usage_pieces(context))])
    rows = [_row(parameter, context) for parameter in command.params]
    table = ["| | default | |", "|---|---|---|", *rows, ""] if rows else []
    example = [f"    {command.epilog.removeprefix('Example: ')}", ""] if command.epilog else []
    return "\n".join([f"### `{words}`", "", command.help or "", "", f"    {usage}", "", *table, *example])


def _row(parameter: click.Parameter, context: click.Context) -> str:
    names = parameter.make_metavar(context) if isinstance(parameter, click.Argument) else ", ".join(parameter.opts)
    meaning = str(getattr(parameter, "help", "") or "").replace("|", "\\|")
    return f"| `{names}` | {_default(parameter, context)} | {meaning} |"


def _default(parameter: click.Parameter, context: click.Context) -> str:
    """Return a parameter's default in Markdown: "" for none, for an empty text and for a switch that is off."""
    said, default = getattr(parameter, "show_default", None), parameter.get_default(context, call=False)
    if isinstance(said, str):  # a default that depends on the machine
        return said
    return "" if default in (None, "", False) else f"`{default}`"
