"""Recipes: every one that is shipped is valid, and one recipe can extend another and have variants."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.runs.experiment import read_layers, read_recipe, resolve
from florilegium.apps.runs.recipes import find_recipe, introduction, recipe_names
from florilegium.apps.settings.configuration import complete, parse
from florilegium.apps.sweeps.sweep import runs_of
from florilegium.apps.tuning.plan import read_plan
from florilegium.clients.ppfe_plan import plan
from florilegium.common.errors import ConfigurationError
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from tests.pretrained import real
from tests.support import CACHE

NAMES = recipe_names()
SHIPPED = [f"{name}:{variant}".rstrip(":") for name in NAMES for variant in ["", *read_layers(name).variants]]


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLORILEGIUM_MODELS", str(real()))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_valid(name: str) -> None:
    settings, hyper = parse(complete(read_recipe(name)))
    if settings.method == "ppfe":
        spec = dataset_of(settings)
        assert plan(hyper, settings, spec.shape, spec.classes, settings.seed).rounds == settings.rounds


@pytest.mark.parametrize("name", NAMES)
def test_variants_set_keys_of_their_own_method(name: str) -> None:
    """A key in another method's table would have no effect."""
    layers = read_layers(name)
    tables = {table_of(method) for method in METHODS.own}
    for variant, keys in layers.variants.items():
        own = table_of(str(complete({**layers.keys, **keys})["method"]))
        assert not [key for key in keys if key.partition(".")[0] in tables - {own}], variant


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_of_a_recipe_says_in_a_whole_sentence_what_it_reproduces(name: str) -> None:
    first = introduction(find_recipe(name))[0]
    assert first.startswith("# ")
    assert first[-1] in ".?)"


@pytest.mark.parametrize("name", [(name, table) for name in NAMES for table in read_layers(name).tune], ids="-".join)
def test_shipped_tuning_tables_are_valid(name: tuple[str, str], tmp_path: Path) -> None:
    recipe, table = name
    read_plan(recipe, table, {"runs-dir": str(tmp_path)})


@pytest.mark.long
def test_what_recipes_start_from_is_made_by_a_sweep() -> None:
    found = [one for name in NAMES for sweep in read_layers(name).sweeps for one in runs_of(name, sweep, {})]
    made = {one.name for one in found}
    starts = {one.name: str(one.keys.get("init", "")).replace("{seed}", str(one.keys["seed"])) for one in found}
    assert {start for start in starts.values() if start} <= made
    assert starts["pefll-cifar10-resnet20-masked-seed2"] == "pefll-cifar10-resnet20-seed2"  # not pefll-cifar10-n100's


@pytest.mark.parametrize("recipe", NAMES)
def test_a_baseline_does_not_inherit_the_server_step_of_a_method(recipe: str) -> None:
    common = read_recipe(recipe)
    for variant, own in read_layers(recipe).variants.items():
        if own.get("method", common["method"]) != common["method"] and common.get("server-optimizer", "sgd") != "sgd":
            assert {"server-optimizer", "server-learning-rate"} <= own.keys(), variant


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """Return a folder with a base recipe and one that extends it."""
    base = tmp_path / "base.toml"
    base.write_text(
        "rounds = 3\nmomentum = 0.5\n[variants.fast]\nrounds = 1\nfedprox.mu = 2.0\n[variants.slow]\nrounds = 9\n"
    )
    (tmp_path / "child.toml").write_text(f'extends = "{base}"\nmomentum = 0.9\n[variants.slow]\nrounds = 99\n')
    return tmp_path


def test_a_recipe_takes_the_keys_of_the_one_it_extends(recipes: Path) -> None:
    assert read_recipe(str(recipes / "child.toml")) == {"rounds": 3, "momentum": 0.9}


def test_a_variant_comes_last_wherever_it_is_defined(recipes: Path) -> None:
    assert read_recipe(f"{recipes / 'child.toml'}:fast") == {"rounds": 1, "momentum": 0.9, "fedprox.mu": 2.0}
    assert read_recipe(f"{recipes / 'child.toml'}:slow") == {"rounds": 99, "momentum": 0.9}
    assert read_recipe(f"{recipes / 'base.toml'}:slow") == {"rounds": 9, "momentum": 0.5}


def test_a_recipe_starts_from_its_own_runs(recipes: Path) -> None:
    (recipes / "base.toml").write_text('[variants.on]\ninit = "{recipe}-seed1"\n')
    assert [read_recipe(f"{recipes / name}:on")["init"] for name in ("base.toml", "child")] == [
        "base-seed1",
        "child-seed1",
    ]


def test_an_unknown_variant_is_named_with_the_nearest(recipes: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no variant 'fest'; did you mean 'fast'\? Known: fast, slow"):
        read_recipe(f"{recipes / 'base.toml'}:fest")


def test_recipes_are_looked_for_beside_the_one_that_names_them(recipes: Path) -> None:
    (recipes / "neighbour.toml").write_text('extends = "base"\n')
    assert read_recipe(str(recipes / "neighbour.toml")) == {"rounds": 3, "momentum": 0.5}


def test_recipes_in_a_circle(recipes: Path) -> None:
    (recipes / "a.toml").write_text('extends = "b"\n')
    (recipes / "b.toml").write_text('extends = "a"\n')
    with pytest.raises(ConfigurationError, match=r"a\.toml: extends must name another recipe"):
        read_recipe(str(recipes / "a.toml"))


def test_variants_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[variants]\nfast = 3\n")
    with pytest.raises(ConfigurationError, match="variants must be tables"):
        read_recipe(str(tmp_path / "wrong.toml"))


def test_a_recipe_that_extends_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "lost.toml").write_text('extends = "nothing"\n')
    with pytest.raises(ConfigurationError, match="there is no recipe 'nothing'"):
        read_recipe(str(tmp_path / "lost.toml"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param((name, sweep), marks=pytest.mark.long if number else (), id=f"{name}-{sweep}")
        for name in NAMES
        for number, sweep in enumerate(read_layers(name).sweeps)
    ],
)
def test_shipped_sweeps_are_valid(name: tuple[str, str]) -> None:
    assert runs_of(*name, {})


@pytest.mark.long
@pytest.mark.skipif("FLORILEGIUM_DATA" not in os.environ, reason="needs the real data")
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("board-")])
def test_the_clients_of_a_board_can_be_made_with_its_seeds(name: str) -> None:
    for seed in (1, 2, 3):
        settings, _ = parse(complete(resolve(name, [], {"seed": seed, "cache-dir": str(CACHE)})))
        federation, _ = federate(settings)
        assert min(*np.diff(federation.train.offsets), *np.diff(federation.test.offsets)) > 0
