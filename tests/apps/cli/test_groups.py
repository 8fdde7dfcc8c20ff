"""Commands from outside the command line's own folder: research tools where they are, other packages' commands."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import click
import pytest
import typer
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli import groups as registry
from florilegium.apps.cli.app import cli
from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.origins.package import own_entry_points
from florilegium.common.errors import ConfigurationError
from florilegium.common.references import resolve

toys = Group(RUN)
DECLARED = own_entry_points("florilegium.commands")


@toys.add("florilegium toy")
def toy() -> None:
    """Say so."""
    print("a toy")


def test_every_research_command_is_declared_with_its_group() -> None:
    for reference in {*DECLARED.values()}:
        commands = typer.main.get_group(resolve(reference)).commands
        assert {*commands} == {name for name, group in DECLARED.items() if group == reference}


def test_without_the_research_tools_their_commands_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("florilegium.apps.origins.package.has_research", lambda: False)
    monkeypatch.setattr(registry, "has_research", lambda: False)
    _installed(monkeypatch, DECLARED)
    assert not [*registry.own_groups()]
    bare = registry.Commands()
    context = click.Context(bare)
    research = {name for name, reference in DECLARED.items() if reference.startswith("florilegium.research.")}
    assert {*bare.list_commands(context)} == {*DECLARED} - research
    for name in research:
        with pytest.raises(ConfigurationError, match=rf"^{name}: the wheel has no research tools.*pip install -e"):
            bare.get_command(context, name)
    assert bare.get_command(context, "nothing") is None


def test_without_the_research_tools_a_run_cannot_be_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("florilegium.apps.origins.package.has_research", lambda: False)
    with pytest.raises(ConfigurationError, match=r"^audit: the wheel has no research tools"):
        fl.Run.audit(object.__new__(fl.Run))


def test_another_package_adds_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, {"toy": f"{__name__}:toys", "broken": "no_such_package:commands"})
    assert CliRunner().invoke(cli, ["toy"]).output == "a toy\n"
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert "Say so." in shown
    assert "broken" not in shown  # a broken package must not hide the others
    assert isinstance(CliRunner().invoke(cli, ["broken"]).exception, ConfigurationError)


def _installed(monkeypatch: pytest.MonkeyPatch, commands: dict[str, str]) -> None:
    """Let installed packages declare these commands."""
    points = {name: EntryPoint(name, group, "florilegium.commands") for name, group in commands.items()}
    monkeypatch.setattr(registry.COMMANDS, "_installed", points)
