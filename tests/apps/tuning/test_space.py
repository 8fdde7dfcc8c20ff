"""Tuning tables: what they mean for each method, and that mistakes are found before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from florilegium.apps.tuning.plan import HELD_BACK, Plan, read_plan
from florilegium.apps.tuning.space import Range, listed, read_tune
from florilegium.common.errors import ConfigurationError

LR = "learning-rate = { low = 0.001, high = 0.3, log = true }"
HEAD = "rounds = 7\n[variants.prox]\nmethod = 'fedprox'\nlearning-rate = 0.2\nfedprox.mu = 0.1\n"


def _recipe(tmp_path: Path, head: str, keys: str) -> str:
    path = tmp_path / "small.toml"
    path.write_text(f"{HEAD}[tune.rates]\n{head}\n[tune.rates.keys]\n{keys}\n")
    return str(path)


def _plan(tmp_path: Path, head: str, keys: str, **overrides: Any) -> Plan:
    recipe = _recipe(tmp_path, head, keys)
    return read_plan(recipe, "rates", {"runs-dir": str(tmp_path), **overrides})


def test_each_method_has_its_own_keys_and_the_recipes_values(tmp_path: Path) -> None:
    mu = "fedprox.mu = { values = [0.001, 0.1, 1] }"
    plan = _plan(tmp_path, 'methods = ["", "prox", "local"]\ntrials = 3', f"{LR}\n{mu}")
    fedavg, prox, local = plan.subjects
    assert [(one.name, one.method, one.variant) for one in plan.subjects] == [
        ("fedavg", "fedavg", ""), ("prox", "fedprox", "prox"), ("local", "local", ""),
    ]  # fmt: skip
    assert (fedavg.own, local.own) == ({"learning-rate": 0.05},) * 2
    assert prox.own == {"learning-rate": 0.2, "fedprox.mu": 0.1}
    assert prox.ranges["fedprox.mu"].values == [0.001, 0.1, 1.0]
    assert all(type(value) is float for value in prox.ranges["fedprox.mu"].values)
    assert all(one.keys["rounds"] == 7 for one in plan.subjects)
    quoted = read_tune(_recipe(tmp_path, "trials = 3", f'{LR}\n"fedprox.mu" = {{ values = [0.001, 0.1, 1] }}'), "rates")
    assert quoted.keys == plan.table.keys


def test_a_method_may_have_ranges_of_its_own(tmp_path: Path) -> None:
    own = """[tune.rates.own]
prox.fedprox = { mu = { values = [0.1, 1] }, adaptive = { values = [false, true] } }
local = { learning-rate = { values = [0.05, 1] }, local-epochs = { low = 1, high = 5 } }
"""
    fedavg, prox, local = _plan(tmp_path, 'methods = ["", "prox", "local"]\ntrials = 3', f"{LR}\n{own}").subjects
    assert fedavg.ranges.keys() == {"learning-rate"}
    assert prox.ranges.keys() == {"learning-rate", "fedprox.mu", "fedprox.adaptive"}
    assert prox.ranges["fedprox.mu"].values == [0.1, 1.0]
    assert local.ranges.keys() == {"learning-rate", "local-epochs"}
    assert local.ranges["learning-rate"].values == [0.05, 1.0]
    assert local.own == {"learning-rate": 0.05, "local-epochs": 5}
    with pytest.raises(ConfigurationError, match="--set local-epochs: a tuning sets it"):
        _plan(tmp_path, 'methods = ["", "prox", "local"]\ntrials = 3', f"{LR}\n{own}", **{"local-epochs": 3})


def test_a_recipe_inherits_ranges_of_the_methods_that_it_tunes(tmp_path: Path) -> None:
    own = """[tune.rates.own]
prox.fedprox.mu = { values = [0.1, 1] }
local.local-epochs = { values = [5, 7] }
"""
    _recipe(tmp_path, 'methods = ["", "prox", "local"]\ntrials = 3', f"{LR}\n{own}")
    heir = tmp_path / "heir.toml"
    heir.write_text('extends = "small"\n[tune.rates]\nmethods = ["", "local"]\n')
    assert read_tune(str(heir), "rates").own.keys() == {"local"}
    heir.write_text(
        'extends = "small"\n[tune.rates]\ntrials = 9\n[tune.rates.own]\nprox.fedprox.mu = { values = [0.1, 2] }\n'
    )
    found = read_tune(str(heir), "rates").own
    assert found["prox"]["fedprox.mu"].values == [0.1, 2.0]
    assert found["local"]["local-epochs"].values == [5, 7]
    heir.write_text('extends = "small"\n[tune.rates]\nmethods = 3\n')
    with pytest.raises(ConfigurationError, match="methods"):
        read_tune(str(heir), "rates")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("prix.fedprox.mu = { values = [0.1, 1] }", "own: 'prix' is not in methods; did you mean 'prox'"),
        ("local.fedprox.mu = { values = [0.1, 1] }", "own: 'local' does not read 'fedprox.mu'"),
        ("prox.fedprox.mu = { values = [0.2, 1] }", "'fedprox.mu' is 0.1 for 'prox' in the recipe, which its range"),
        ("prox.rounds = { low = 1, high = 9 }", "'rounds' cannot be tuned"),
        ("prox.fedprox.mi = { low = 1, high = 9 }", "no key 'fedprox.mi'; did you mean 'fedprox.mu'"),
    ],
)  # fmt: skip
def test_mistakes_in_a_methods_own_ranges(tmp_path: Path, own: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _plan(tmp_path, 'methods = ["", "prox", "local"]\ntrials = 3', f"{LR}\n[tune.rates.own]\n{own}")


def test_trials_measure_on_held_back_examples_alone(tmp_path: Path) -> None:
    for given, share in (({}, HELD_BACK), ({"validation-fraction": 0.3, "transfer-target": "mnist"}, 0.3)):
        keys = _plan(tmp_path, "trials = 1\nrounds = 3", LR, **given).subjects[0].keys
        assert (keys["evaluate-on"], keys["validation-fraction"], keys["transfer-target"]) == ("validation", share, "")
        assert (keys["rounds"], keys["runs-dir"]) == (3, str(tmp_path / "tune-small-rates" / "trials"))


@pytest.mark.parametrize(
    ("head", "keys", "said"),
    [
        ("trials = 0", LR, r"\[tune.rates\]: trials: .*greater than or equal to 1 \(found: 0\)"),
        ("", LR, "trials: field required"),
        ("trials = 2\ntrails = 2", LR, "trails: extra inputs"),
        ("trials = 2\nfigure = 'accuracy'", LR, "figure: .*'validation_accuracy' or 'validation_loss'"),
        ("trials = 2\nmethods = ['fedprx']", LR, "'fedprx' is neither a variant of the recipe nor a method; did"),
        ("trials = 2\nmethods = ['', 'fedavg']", LR, "methods: 'fedavg' is given twice"),
        ("trials = 2\nmethods = ['local']", "fedprox.mu = { low = 0, high = 1 }", "'fedprox.mu' is read by none"),
        ("trials = 2\nmethods = ['', 'prox']", "fedprox.mu = { low = 0, high = 1 }", "'fedavg' reads none of the keys"),
        ("trials = 2\nmethods = ['k-fed']", LR, "(?s)model: 'k-fed' finds centres|'k-fed' predicts no targets"),
        ("trials = 2", "", "keys: dictionary should have at least 1 item"),
        ("trials = 2", "learning-rate = 0.1", "keys.learning-rate: .*dictionary"),
        ("trials = 2", "learning-rate = { low = 0.3, high = 0.1 }", "keys.learning-rate: low must be less than high"),
        ("trials = 2", "learning-rate = { low = 'a', high = 1 }", r"keys.learning-rate.low: .*\(found: 'a'\)"),
        ("trials = 2", "learning-rate = { low = nan, high = 1 }", "keys.learning-rate.low: .*finite number"),
        ("trials = 2", "learning-rate = { low = 0.1 }", "keys.learning-rate: give low and high, or a list"),
        ("trials = 2", "learning-rate = { low = 0, high = 1, log = true }", "low must be greater than 0"),
        ("trials = 2", "learning-rate = { values = [0.1] }", "two or more different ones"),
        ("trials = 2", "learning-rate = { values = [0.1, 1], low = 0.1 }", "either low and high, or values"),
        ("trials = 2", "learning-rate = { low = -1, high = 1 }", r"learning-rate: .*greater than 0 \(found: -1.0\)"),
        ("trials = 2", "momentum = { low = 0, high = 1 }", r"momentum: .*less than 1 \(found: 1.0\)"),
        ("trials = 2", "local-epochs = { low = 0.5, high = 8 }", r"local-epochs: .*integer.*\(found: 0.5\)"),
        ("trials = 2", "optimizer = { values = ['sgd', 'adm'] }", r"optimizer: .*\(found: 'adm'\)"),
        ("trials = 2", "learning-rte = { low = 0.1, high = 1 }", "no key 'learning-rte'; did you mean 'learning-rate'"),
        ("trials = 2", "learning-rate = { low = 0.1, high = 1 }", "is 0.05 for 'fedavg' in the recipe"),
        ("trials = 2", "alpha = { low = 0.1, high = 1 }", "'alpha' cannot be tuned"),
        ("trials = 2", "rounds = { low = 1, high = 9 }", "'rounds' cannot be tuned"),
        ("trials = 2", "privacy.epsilon = { low = 0, high = 9 }", "'privacy.epsilon' cannot be tuned"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, head: str, keys: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as error:
        _plan(tmp_path, head, keys)
    assert "small.toml', [tune.rates]: " in str(error.value)


def test_set_leaves_tuned_keys_alone(tmp_path: Path) -> None:
    for key, value in (("learning-rate", 0.1), ("method", "local"), ("run-name", "x")):
        with pytest.raises(ConfigurationError, match=f"--set {key}: a tuning sets it"):
            _plan(tmp_path, "trials = 2", LR, **{key: value})
    with pytest.raises(ConfigurationError, match="no tuning table 'rate'; did you mean 'rates'"):
        read_tune(_recipe(tmp_path, "trials = 2", LR), "rate")


@pytest.mark.parametrize(
    ("found", "inside", "below", "above"),
    [
        (Range(low=1, high=5), [2, 4], {1: 0}, {5: 6}),
        (Range(low=0.0, high=1.0), [0.06, 0.94], {0.0: -0.05, 0.04: -0.05}, {0.96: 1.05}),
        (Range(low=0.01, high=1.0, log=True), [0.0127, 0.79], {0.0125: 0.0095}, {0.8: 1.0495}),
        (Range(values=[0.1, 0.3, 0.2]), [0.2], {0.1: 0.095}, {0.3: 0.31}),
        (Range(values=["sgd", "adam"]), ["sgd", "adam"], {}, {}),
        (Range(values=[True, False]), [True, False], {}, {}),
    ],
)  # fmt: skip
def test_the_edge_of_a_range(found: Range, inside: list[Any], below: dict[Any, Any], above: dict[Any, Any]) -> None:
    assert [found.beyond(value) for value in inside] == [None] * len(inside)
    for value, outside in (below | above).items():
        assert found.beyond(value) == pytest.approx(outside)


def test_short_lists_are_tried_as_a_whole() -> None:
    ranges = {"a": Range(values=[1, 2]), "b": Range(values=["x", "y", "z"])}
    assert listed(ranges, 6) == [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]
    assert listed(ranges, 5) == []
    assert listed({**ranges, "c": Range(low=0.1, high=1.0)}, 100) == []
