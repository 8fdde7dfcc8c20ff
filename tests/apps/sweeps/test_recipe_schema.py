"""The JSON schema of recipes: all of the suite are valid by it, and what a run would refuse is not."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.runs.recipes import RECIPES, recipe_names
from florilegium.apps.settings.configuration import defaults
from florilegium.apps.sweeps.recipe_schema import recipe_schema
from florilegium.common.toml import nested


@pytest.fixture(scope="module")
def schema() -> Draft7Validator:
    content = json.loads(CliRunner().invoke(cli, ["recipes", "--schema"]).stdout)
    Draft7Validator.check_schema(content)
    return Draft7Validator(content)


def test_every_recipe_of_the_suite_is_valid(schema: Draft7Validator) -> None:
    for name in recipe_names():
        errors = [*schema.iter_errors(tomllib.loads((RECIPES / f"{name}.toml").read_text()))]
        assert not errors, f"{name}: {errors[0].message}"


def test_all_defaults_are_valid(schema: Draft7Validator) -> None:
    assert not [*schema.iter_errors(nested(defaults()))]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("roundz = 3", "roundz"),
        ("rounds = '3'", "rounds"),
        ("participation = 1.5", "participation"),
        ("mode = 'bufered'", "mode"),
        ("fedprox.my = 1", "my"),
        ("fedprox.mu = -1", "mu"),
        ("[variants.a]\nroundz = 3", "roundz"),
        ("[variants.a]\nfedprox.mu = -1", "mu"),
        ("[sweeps.a]\nvariant = ['']", "variant"),
        ("[tune.a.keys]\nlearning-rate = { lo = 1 }", "learning-rate"),
        ("[tune.a.own.local]\nlearning-rate = { lo = 1 }", "learning-rate"),
        ("extends = 3", "extends"),
    ],
)
def test_what_a_run_refuses_is_marked(schema: Draft7Validator, text: str, where: str) -> None:
    errors: list[Any] = [*schema.iter_errors(tomllib.loads(text))]
    assert errors
    assert any(where in (*error.absolute_path, *error.message.split("'")) for error in errors)


def test_tables_of_other_packages_are_left_alone(schema: Draft7Validator) -> None:
    assert not [*schema.iter_errors(tomllib.loads("method = 'mine:Client'\n[mine]\nstrength = 1"))]


def test_editors_can_show_what_a_key_means() -> None:
    keys = recipe_schema()["definitions"]["keys"]["properties"]
    assert keys["rounds"]["default"] == 30
    assert keys["fedprox"]["properties"]["mu"]["minimum"] == 0
    assert keys["mode"]["enum"] == ["synchronous", "buffered"]
    assert "values: `florilegium datasets`" in keys["dataset"]["description"]
