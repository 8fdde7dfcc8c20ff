"""Sweeps: which runs they are, that finished ones are kept, and what table comes out."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from florilegium.apps.runs.experiment import recipe_name
from florilegium.apps.sweeps.named_runs import run_all, unfinished
from florilegium.apps.sweeps.report import write_sweep
from florilegium.apps.sweeps.sweep import read_sweep, runs_of
from florilegium.common.errors import ConfigurationError, FileError, RunError
from florilegium.common.pages import markdown
from florilegium.common.settings import Value
from florilegium.strategies.folder.claim import claimed
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.results import SUMMARY, read_clients
from tests.grid import run_app
from tests.support import CACHE, config

RECIPE = """
rounds = 2
num-clients = 5
evaluate-every = 1
[variants.prox]
method = "fedprox"
[variants.solved]
dataset = "synthetic-linear"
model = "linear"
method = "ppfe-linear"
[sweeps.rates]
variants = ["", "prox"]
over = "learning-rate"
values = [0.01, 0.05]
[sweeps.methods]
variants = ["", "prox"]
seeds = [1, 2]
[sweeps.claimed]
variants = ["", "prox"]
over = "learning-rate"
values = [0.01, 0.05]
seeds = [1, 2]
claims = [{ paper = "Li et al. 2020", better = "prox", worse = "" }, { paper = "nobody", better = "", worse = "prox" }]
[sweeps.unclear]
variants = ["prox"]
claims = [{ paper = "Li et al. 2020", better = "prox", worse = "" }]
[sweeps.held]
figure = "validation_accuracy"
[sweeps.weighted]
variants = ["", "prox"]
figure = "accuracy_weighted"
[sweeps.losses]
figure = "validation_loss"
[sweeps.numbers]
variants = ["solved"]
figure = "accuracy"
[sweeps.splits]
over = "angles"
values = ["0,90"]
[sweeps.twice]
seeds = [1, 1]
[sweeps.seeds]
over = "seed"
values = [1, 2]
[sweeps.halved]
over = "rounds"
[sweeps.misspelt]
varaints = [""]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Return the path of a recipe with sweeps."""
    (tmp_path / "small.toml").write_text(RECIPE)
    return str(tmp_path / "small.toml")


def _overrides(tmp_path: Path) -> dict[str, Value]:
    return {"runs-dir": str(tmp_path), "cache-dir": str(CACHE)}


def _run(keys: Mapping[str, Value]) -> Path:
    run_app(config(**keys))
    return Path(str(keys["runs-dir"])) / str(keys["resume"] if keys.get("resume") else keys["run-name"])


def test_a_sweep_is_variants_times_values_times_seeds(recipe: str, tmp_path: Path) -> None:
    rates = runs_of(recipe, "rates", _overrides(tmp_path))
    assert [(one.variant, one.value) for one in rates] == [("", 0.01), ("", 0.05), ("prox", 0.01), ("prox", 0.05)]
    assert [one.keys["learning-rate"] for one in rates] == [0.01, 0.05, 0.01, 0.05]
    assert [one.keys.get("method", "fedavg") for one in rates] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    methods = runs_of(recipe, "methods", _overrides(tmp_path))
    assert [(one.variant, one.keys["seed"]) for one in methods] == [("", 1), ("", 2), ("prox", 1), ("prox", 2)]
    assert len({one.name for one in rates + methods}) == 8


def test_finished_runs_are_not_run_again_and_broken_ones_go_on(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "rates", _overrides(tmp_path))
    started: list[Mapping[str, Value]] = []

    def run(keys: Mapping[str, Value]) -> Path:
        started.append(keys)
        return _run(keys)

    first = run_all(wanted[:3], tmp_path, run).all()
    assert len(started) == 3
    (first[1] / "summary.json").unlink()
    (first[2] / "summary.json").unlink()
    for file in (first[2] / "checkpoint").iterdir():
        file.unlink()
    paths = run_all(wanted, tmp_path, run).all()
    assert paths[:3] == first
    assert [keys.get("resume", "") for keys in started[3:]] == [first[1].name, "", ""]
    assert all((path / "summary.json").exists() for path in paths)


def test_the_table_has_the_runs_figures(recipe: str, tmp_path: Path) -> None:
    for name, over in (("rates", "learning-rate"), ("methods", "")):
        wanted = runs_of(recipe, name, _overrides(tmp_path))
        paths = run_all(wanted, tmp_path, _run).all()
        report = write_sweep("small", read_sweep(recipe, name), wanted, paths, tmp_path / name)
        table = markdown(report.tables[0])
        final = [100 * read_metrics(path)[-1]["seen"]["accuracy"] for path in paths]
        lines = table.splitlines()
        assert lines[0] == f"| {over} | fedavg | prox |"
        if over:
            assert lines[2] == f"| 0.01 | {final[0]:.1f} | {final[2]:.1f} |"
            assert lines[3] == f"| 0.05 | {final[1]:.1f} | {final[3]:.1f} |"
        else:
            halves = [(a + b) / 2 for a, b in (final[:2], final[2:])]
            errors = [abs(a - b) / 2 for a, b in (final[:2], final[2:])]  # s/√n of two values
            shown = [f"{mean:.1f} ± {error:.1f}" for mean, error in zip(halves, errors, strict=True)]
            assert lines[2] == f"| accuracy (%) | {' | '.join(shown)} |"
        assert (tmp_path / name / "report.png").stat().st_size > 1000
        assert table in (tmp_path / name / "report.md").read_text()


def test_remarks_name_the_value_that_they_are_about(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "rates", _overrides(tmp_path))
    paths = run_all(wanted, tmp_path, _run).all()
    for path in paths[:3]:  # both values without "prox", and one with it
        summary = json.loads((path / SUMMARY).read_text())
        (path / SUMMARY).write_text(json.dumps({**summary, "warnings": ["it is slow"]}))
    remarks = write_sweep("small", read_sweep(recipe, "rates"), wanted, paths, tmp_path / "rates").remarks
    slow = [remark.split(", seed")[0] for remark in remarks if "it is slow" in remark]
    assert slow == ["fedavg", "learning-rate = 0.01: prox"]


def test_claimed_orders_are_judged_by_paired_seeds(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "claimed", _overrides(tmp_path))
    paths = run_all(wanted, tmp_path, _run).all()
    *_, judged = write_sweep("small", read_sweep(recipe, "claimed"), wanted, paths, tmp_path / "claimed").tables
    accuracy = {one.name: read_metrics(path)[-1]["seen"]["accuracy"] for one, path in zip(wanted, paths, strict=True)}
    for value, (first, second) in (("0.01", judged.rows[:2]), ("0.05", judged.rows[2:])):
        plain, prox = (
            np.array([accuracy[f"small-{variant}learning-rate-{value}-seed{seed}"] for seed in (1, 2)])
            for variant in ("", "prox-")
        )
        gain = prox - plain
        half = 12.706 * abs(gain[0] - gain[1]) / 2  # t(1) at 97.5 %, s/√2
        word = "holds" if gain.mean() > half else "does not hold" if gain.mean() < -half else "not distinguishable"
        assert first[:4] == (value, "Li et al. 2020", "prox", "fedavg")
        assert first[4:] == (f"{gain.mean():+.3f} ± {half:.3f}", word)
        assert float(second[4].split()[0]) == pytest.approx(-gain.mean(), abs=6e-4)
    told = tomllib.loads((tmp_path / "claimed" / "claims.toml").read_text())
    assert told == {"over": "learning-rate", "verdicts": [list(row) for row in judged.rows]}
    assert "do published claims hold?" in (tmp_path / "claimed" / "report.md").read_text()


def test_a_sweep_may_show_the_mean_weighted_by_test_examples(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "weighted", {**_overrides(tmp_path), "partitioner": "dirichlet"})
    paths = run_all(wanted, tmp_path, _run).all()
    table, paired = write_sweep("small", read_sweep(recipe, "weighted"), wanted, paths, tmp_path / "weighted").tables
    clients = [np.array([[float(line[name]) for name in ("test_examples", "accuracy")] for line in read_clients(path)])
               for path in paths]  # fmt: skip
    one, other = (100 * np.average(own[:, 1], weights=own[:, 0]) for own in clients)
    assert abs(one - 100 * clients[0][:, 1].mean()) > 0.1
    assert markdown(table).splitlines()[2] == f"| accuracy, weighted by test examples (%) | {one:.1f} | {other:.1f} |"
    assert paired.title == "paired differences, clients unweighted"
    mean = 100 * (clients[1][:, 1] - clients[0][:, 1]).mean()
    assert f"| {mean:+.1f} |" in markdown(paired)


def test_a_sweep_may_show_what_was_held_back(recipe: str, tmp_path: Path) -> None:
    overrides: dict[str, Value] = {**_overrides(tmp_path), "validation-fraction": 0.3}
    for name, digits, scale in (("held", 1, 100), ("losses", 3, 1)):
        wanted = runs_of(recipe, name, overrides)
        paths = run_all(wanted, tmp_path, _run).all()
        table = markdown(write_sweep("held", read_sweep(recipe, name), wanted, paths, tmp_path / name).tables[0])
        final = read_metrics(paths[0])[-1]["seen"]
        figure = final["validation_accuracy" if name == "held" else "validation_loss"]
        assert table.splitlines()[2].endswith(f"| {scale * figure:.{digits}f} |")
        assert figure != final["accuracy" if name == "held" else "loss"]
        with pytest.raises(ConfigurationError, match="validation-fraction is 0"):
            runs_of(recipe, name, _overrides(tmp_path))


def test_a_run_with_other_settings_is_not_taken_for_it(recipe: str, tmp_path: Path) -> None:
    run_all(runs_of(recipe, "rates", _overrides(tmp_path))[:1], tmp_path, _run)
    for key, value in (("momentum", 0.5), ("rounds", 1), ("evaluate-clients", 2)):
        wanted = runs_of(recipe, "rates", {**_overrides(tmp_path), key: value})
        with pytest.raises(ConfigurationError, match=rf"already a run .* with other settings. {key}: was"):
            run_all(wanted[::-1], tmp_path, _run)  # nothing is run before: the run is the last
        with pytest.raises(ConfigurationError, match="other settings") as raised:
            unfinished(wanted, tmp_path)  # nor is an engine started for them
        assert ("Ask for the same (--set " in str(raised.value)) == (key != "momentum")
    assert len(list(tmp_path.glob("*/summary.json"))) == 1


def test_a_dot_in_a_recipes_name_belongs_to_it() -> None:
    assert (
        recipe_name("ppfe-cifar10-dir0.3")
        == recipe_name("some/where/ppfe-cifar10-dir0.3.toml")
        == "ppfe-cifar10-dir0.3"
    )


def test_two_commands_do_not_work_on_one_cell(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "rates", _overrides(tmp_path))[:1]

    def run(keys: Mapping[str, Value]) -> Path:
        with pytest.raises(RunError, match="another command is working"):
            run_all(wanted, tmp_path, _run).all()
        return _run(keys)

    (path,) = run_all(wanted, tmp_path, run).all()
    assert (path / "summary.json").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".locks", path.name, "small.toml"]


def test_a_run_that_fails_does_not_end_the_others(recipe: str, tmp_path: Path) -> None:
    wanted = runs_of(recipe, "rates", _overrides(tmp_path))[:3]

    def run(keys: Mapping[str, Value]) -> Path:
        if keys["learning-rate"] == 0.05:
            raise RunError("it diverged")
        return _run(keys)

    outcome = run_all(wanted, tmp_path, run)
    assert outcome.completed == [tmp_path / wanted[0].name, tmp_path / wanted[2].name]
    assert str(outcome) == f"1 of 3 runs failed:\n  {wanted[1].name}: it diverged"
    with pytest.raises(RunError, match="1 of 3 runs failed"):
        outcome.all()
    for error in (FileError("the disk is full"), ConfigurationError("wrong"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            run_all(wanted, tmp_path, lambda _, error=error: (_ for _ in ()).throw(error))


def test_reused_runs_of_other_code_are_named(
    recipe: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = runs_of(recipe, "methods", _overrides(tmp_path))[:2]
    run_all(wanted[:1], tmp_path, _run)
    run_all(wanted[:1], tmp_path, _run)
    assert "reused" not in caplog.text
    monkeypatch.setattr("florilegium.apps.origins.provenance.code_version", lambda: "another")
    run_all(wanted, tmp_path, _run)
    assert f"reused: {wanted[0].name}, which were made by another version of florilegium's code" in caplog.text


def test_sweeps_share_runs_and_a_seed_replaces_theirs(recipe: str, tmp_path: Path) -> None:
    names = [one.name for one in runs_of(recipe, "methods", _overrides(tmp_path))]
    assert names == ["small-seed1", "small-seed2", "small-prox-seed1", "small-prox-seed2"]
    seven = runs_of(recipe, "methods", {**_overrides(tmp_path), "seed": 7})
    assert [one.name for one in seven] == ["small-seed7", "small-prox-seed7"]
    assert [one.name for one in runs_of(recipe, "splits", _overrides(tmp_path))] == ["small-angles-0_90-seed1"]


def test_mistakes(recipe: str, tmp_path: Path) -> None:
    for name, said in (
        ("rate", r"has no sweep 'rate'; did you mean 'rates'\? Known: rates, methods, claimed, unclear, "),
        ("halved", "sweep 'halved': halved: Value error, over and values go together"),
        ("misspelt", "sweep 'misspelt': varaints"),
        ("seeds", "a sweep cannot go over 'seed'"),
        ("unclear", "claims: '' is none of variants"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_sweep(recipe, name)
    for name, wrong, said in (
        ("methods", {"learning-rate": -1.0}, "learning-rate"),
        ("methods", {"seed": "abc"}, "seed: "),
        ("methods", {"resume": "old"}, "--set resume: a sweep sets it"),
        ("rates", {"learning-rate": 0.1}, "--set learning-rate: a sweep sets it"),
        ("twice", {}, "has the run small-seed1 twice"),
        ("numbers", {}, "figure = 'accuracy' of method 'ppfe-linear' and its task"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            runs_of(recipe, name, {**_overrides(tmp_path), **wrong})


def test_a_run_that_is_being_carried_out_is_not_deleted(recipe: str, tmp_path: Path) -> None:
    """Its cell's lock is free, since not a sweep carries it out, and it has no checkpoint yet."""
    first = runs_of(recipe, "rates", _overrides(tmp_path))[0]
    folder = tmp_path / first.name
    with claimed(folder):
        (folder / "run.log").write_text("round 1")
        outcome = run_all([first], tmp_path, _run)
        assert "another command is working on" in outcome.failed[first.name]
        assert (folder / "run.log").exists()
