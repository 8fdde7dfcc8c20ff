"""Tuning: what it reads, that it goes on as if never stopped, what it chooses and how the choice is used."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.engines.base import Engine, Means, OnEvaluation
from florilegium.apps.engines.process import InThisProcess
from florilegium.apps.tuning import plan, trials
from florilegium.apps.tuning.plan import read_plan
from florilegium.apps.tuning.results import Result, Trial, Tuning, read_tuned
from florilegium.apps.tuning.study import MethodStudy
from florilegium.common.errors import ConfigurationError, FileError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.support import CACHE

SMALL = """
model = "linear"
num-clients = 6
classes-per-client = "2"
unseen-fraction = 0.2
labeled-fraction = 0.8
rounds = 2
evaluate-every = 1
local-epochs = 1
[tune.rates]
methods = ["", "fedprox"]
trials = 3
[tune.rates.keys]
learning-rate = { low = 0.01, high = 1.0, log = true }
fedprox.mu = { values = [0.01, 1.0] }
"""


def _data(*, poisoned: bool) -> str:
    """Return a dataset with three overlapping classes, or its training part with noise and shuffled labels as tests."""
    rng = np.random.default_rng(1)
    y = np.arange(330) % 3
    x = rng.normal(size=(330, 4)) + 1.5 * np.eye(4)[y]
    train, test = (x[:240], y[:240]), (x[240:], y[240:])
    noise = (1e6 * rng.normal(size=(90, 4)), rng.permutation(test[1]))
    return array_dataset(train, noise if poisoned else test, cache_dir=str(CACHE))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return the path of a recipe with a tuning table."""
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def _tune(recipe: Path, runs: Path, *, poisoned: bool = False, **overrides: Value) -> Tuning:
    keys = {"runs-dir": str(runs), "cache-dir": str(CACHE), "dataset": _data(poisoned=poisoned), **overrides}
    return trials.tune(str(recipe), "rates", keys, Means("process"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Tuning]:
    """Return a recipe, the folder of its runs, and its tuning."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "small.toml").write_text(SMALL)
    return folder / "small.toml", folder / "runs", _tune(folder / "small.toml", folder / "runs")


def _without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long and only the page shows."""
    monkeypatch.setattr(trials, "write_tuning", lambda tuning: None)
    monkeypatch.setattr(MethodStudy, "_importances", lambda study: {})


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Return a function that lets trials be pretended runs; their figure is one of the rate plus one of the seed."""

    def pretend(
        figure: Callable[[float], float], *, page: bool = False, of_seed: Callable[[int], float] = lambda seed: 0.0
    ) -> list[float]:
        tried: list[float] = []

        def run(engine: InThisProcess, keys: Mapping[str, Any], display: object) -> Path:
            path = Path(keys["runs-dir"]) / keys["run-name"]
            tried.append(keys["learning-rate"])
            value = figure(keys["learning-rate"]) + of_seed(keys.get("seed", 1))
            (path / "checkpoint").mkdir(parents=True)
            figures = {"seen": {"validation_accuracy": value, "validation_loss": value, "accuracy": 1.0}}
            ended = next((r for r in range(1, 5) if engine.on_evaluation and engine.on_evaluation(r, figures)), 4)
            (path / "summary.json").write_text(json.dumps({"rounds": ended, "final": figures}))
            (path / "clients.csv").write_text("client,group\n0,seen\n1,seen\n2,unseen\n")
            return path

        monkeypatch.setattr(trials, "run_experiment", run)
        monkeypatch.setattr(trials, "choose", choose)
        if not page:
            _without_page(monkeypatch)
        return tried

    @contextmanager
    def choose(name: str, workers: int, wanted: object, on_evaluation: OnEvaluation, *, fork: bool) -> Iterator[Engine]:
        yield InThisProcess(on_evaluation=on_evaluation)

    return pretend


# ------------------------------------------------------------------------------------ what is read


def test_no_code_path_of_tuning_reads_test_examples(
    tuned: tuple[Path, Path, Tuning], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_page(monkeypatch)
    recipe, _, clean = tuned
    poisoned = _tune(recipe, tmp_path, poisoned=True)
    assert [result.trials for result in poisoned.results] == [result.trials for result in clean.results]
    assert [result.best for result in poisoned.results] == [result.best for result in clean.results]
    # The poison acts where test examples are read.
    keys: dict[str, Any] = {"runs_dir": tmp_path, "cache_dir": str(CACHE), "engine": "process", "progress": False}
    runs = [fl.run(recipe, dataset=_data(poisoned=poisoned), **keys) for poisoned in (False, True)]
    losses = [run.summary["final"]["seen"]["loss"] for run in runs]
    assert losses[1] > 100 * losses[0]


def test_the_objective_is_the_mean_over_the_seen_clients(tuned: tuple[Path, Path, Tuning]) -> None:
    for result in tuned[2].results:
        for trial in result.trials:
            path = tuned[1] / "tune-small-rates" / "trials" / f"{result.subject.name}-{trial.number:03d}"
            with (path / "clients.csv").open() as lines:
                rows = list(csv.DictReader(lines))
            seen = [float(row["validation_accuracy"]) for row in rows if row["group"] == "seen"]
            assert trial.objective == pytest.approx(np.mean(seen))
            assert trial.clients == len(seen) > 0
            assert {row["group"] for row in rows} == {"seen", "unseen"}  # an unlabeled client holds back nothing
            assert all(row["accuracy"] == row["validation_accuracy"] for row in rows)
            config = tomllib.loads((path / "config.toml").read_text())
            assert config["learning-rate"] == trial.values["learning-rate"]
            assert not list(path.glob("**/*.safetensors"))


# --------------------------------------------------------------------------------------- goes on


def test_an_interrupted_tuning_goes_on_as_if_it_had_not_been(
    tuned: tuple[Path, Path, Tuning], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_page(monkeypatch)
    original, stops = trials.run_experiment, iter((0, 1, 4))
    left = [next(stops)]

    def run(*arguments: Any) -> Path:
        if left[0] == 0:
            left[0] = next(stops, 99)
            path = Path(arguments[1]["runs-dir"]) / arguments[1]["run-name"]
            path.mkdir(parents=True)
            (path / "torn.json").write_text("{")
            raise KeyboardInterrupt
        left[0] -= 1
        return original(*arguments)

    monkeypatch.setattr(trials, "run_experiment", run)
    for said in ("trial 0 of 'fedavg'", "trial 1 of 'fedavg'", "trial 2 of 'fedprox'"):
        with pytest.raises(KeyboardInterrupt, match=f"stopped in {said}; the same command goes on"):
            _tune(tuned[0], tmp_path)
        assert not (tmp_path / "tune-small-rates" / "tuned.toml").exists()
    assert [r.trials for r in _tune(tuned[0], tmp_path).results] == [r.trials for r in tuned[2].results]
    assert not list(tmp_path.glob("**/torn.json"))


def test_a_complete_tuning_is_only_read(tuned: tuple[Path, Path, Tuning], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tuned[1] / "tune-small-rates"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("[rt]*.*")}
    monkeypatch.setattr(trials, "run_experiment", None)
    again = _tune(*tuned[:2])
    assert [result.trials for result in again.results] == [result.trials for result in tuned[2].results]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("[rt]*.*")} == before


@pytest.mark.long
def test_more_trials_go_on_and_another_study_is_refused(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    tried = pretended(lambda rate: -abs(math.log(rate / 0.3)))
    one = SMALL.replace('"", "fedprox"', '""').replace("fedprox.mu", "#")
    recipe.write_text(one)
    _tune(recipe, tmp_path)
    more = one.replace("trials = 3", "trials = 5")
    recipe.write_text(more)
    assert [len(result.trials) for result in _tune(recipe, tmp_path).results] == [5]
    assert len(tried) == 5
    for text, overrides, said in (
        (one, {}, "has 5 trials of 'fedavg' already, trials = 3 asks for fewer"),
        (more.replace("0.01, high", "0.02, high"), {}, "with ranges of learning-rate: was {'low': 0.01"),
        (more.replace("num-clients = 6", "num-clients = 5"), {}, r"'fedavg' with num-clients: was 6, is 5.*partition"),
        (more, {"seed": 2}, "with seed: was 1, is 2"),
        (more.replace("rounds = 2", "rounds = 3"), {}, "with rounds: was 2, is 3"),
        (more, {"poisoned": True}, "with dataset: was .*origins of dataset: was"),
        (more.replace("trials = 5", "trials = 5\nfigure = 'validation_loss'"), {}, "figure: was validation_accuracy"),
    ):
        recipe.write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            _tune(recipe, tmp_path, **overrides)  # type: ignore[arg-type]


def test_two_commands_do_not_work_on_one_study_and_a_damaged_one_is_named(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    folder = tmp_path / "tune-small-rates"
    folder.mkdir()
    with FileLock(folder / ".lock"), pytest.raises(RunError, match="another command is working on"):
        _tune(recipe, tmp_path)
    (folder / "study.db").write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"(?s)study.db is damaged, or cannot be written.*Delete its folder"):
        _tune(recipe, tmp_path)


# ---------------------------------------------------------------------------------- what is chosen


def test_the_best_trial_is_chosen_and_is_never_worse_than_the_recipe(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    recipe.write_text(SMALL.replace("trials = 3", "trials = 9").replace('"", "fedprox"', '"fedprox"'))
    tried = pretended(lambda rate: -abs(math.log(rate / 0.05)), page=True)  # 0.05 is the recipe's own
    result = _tune(recipe, tmp_path).results[0]
    assert tried[0] == 0.05
    assert result.best is result.trials[0]
    assert len(set(tried)) == 9
    assert all(0.01 <= rate <= 1 for rate in tried)
    assert result.importances.keys() == {"learning-rate", "fedprox.mu"}
    assert result.importances["learning-rate"] > 0.8  # mu has no effect
    # Five completed; of the later ones those below the median ended after a quarter of the rounds.
    assert {trial.state for trial in result.trials[:5]} == {"complete"}
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned
    assert all(trial.rounds < 4 for trial in pruned)
    shutil.rmtree(tmp_path / "tune-small-rates")
    tried = pretended(lambda rate: rate)
    best = _tune(recipe, tmp_path).results[0].best
    assert best is not None
    assert best.objective == max(tried) > 0.05
    shutil.rmtree(tmp_path / "tune-small-rates")
    recipe.write_text(SMALL.replace("trials = 3", "trials = 4\nfigure = 'validation_loss'"))
    tried = pretended(lambda rate: rate)
    losses = _tune(recipe, tmp_path).results[0]
    assert losses.best is not None
    assert losses.best.objective == min(tried[:4]) < 0.05
    assert losses.curve() == list(np.minimum.accumulate(tried[:4]))


def test_a_trial_of_several_seeds_is_judged_by_their_mean(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    several = SMALL.replace("rounds = 2", "rounds = 4").replace("trials = 3", "trials = 2\nseeds = [4, 7]")
    recipe.write_text(several)
    tried = pretended(lambda rate: 0.5, of_seed={4: 0.0, 7: 0.25}.__getitem__, page=True)
    tuning = _tune(recipe, tmp_path)
    assert [trial.objective for trial in tuning.results[0].trials] == [0.625, 0.625]
    assert (tried[0], tried[2]) == (tried[1], tried[3])
    folder = tmp_path / "tune-small-rates"
    names = {f"{method}-00{i}-seed{seed}" for method in ("fedavg", "fedprox") for i in (0, 1) for seed in (4, 7)}
    assert {path.name for path in (folder / "trials").iterdir()} == names
    assert tomllib.loads((folder / "tuned.toml").read_text())["methods"]["fedavg"]["seeds"] == [4, 7]
    assert "model linear, mean over seeds 4, 7." in (folder / "report.md").read_text()
    recipe.write_text(recipe.read_text().replace("[4, 7]", "[4]"))
    with pytest.raises(ConfigurationError, match=r"seeds: were \[4, 7\], are \[4\]"):
        _tune(recipe, tmp_path)
    with pytest.raises(ConfigurationError, match="--set seed: a tuning sets it"):
        _tune(recipe, tmp_path, seed=1)
    recipe.write_text(recipe.read_text().replace("[4]", "[4, 4]"))
    with pytest.raises(ConfigurationError, match=r"\[tune.rates\]: seeds: 4 is given twice"):
        _tune(recipe, tmp_path)


def test_every_seed_starts_from_its_own_model(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(init: str, seed: int, runs_dir: str) -> Path:
        return Path(runs_dir) / f"{init}-seed{seed}.npz"

    monkeypatch.setattr(plan, "find_initial", find)
    recipe.write_text(SMALL.replace("trials = 3", "trials = 3\nseeds = [4, 7]"))
    for subject in read_plan(str(recipe), "rates", {"runs-dir": str(tmp_path), "init": "pretrained"}).subjects:
        assert subject.runs == [{"seed": s, "init": str(tmp_path / f"pretrained-seed{s}.npz")} for s in (4, 7)]
        assert subject.keys.items() >= subject.runs[0].items()


def test_a_trial_fails_with_the_first_seed_that_does(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    def of_seed(seed: int) -> float:
        if seed == 7:
            raise RunError(f"'loss' is nan with seed {seed}")
        return 0.0

    recipe.write_text(SMALL.replace("trials = 3", "trials = 1\nseeds = [4, 7, 8]"))
    tried = pretended(lambda rate: 0.5, of_seed=of_seed)
    for result in _tune(recipe, tmp_path).results:
        assert [(trial.state, trial.objective) for trial in result.trials] == [("failed", None)]
        assert result.failure == "'loss' is nan with seed 7"
    assert len(tried) == 4  # two methods, two of three seeds


def test_trials_are_pruned_at_the_same_seed_and_round() -> None:
    reported: list[tuple[float, int]] = []

    class Reporting:
        def report(self, value: float, step: int) -> None:
            reported.append((value, step))

        def should_prune(self) -> bool:
            return False

    present = trials._Present("validation_accuracy")
    for before in (0, 3):  # two seeds of three rounds; the last evaluation of all is no reason to end
        present.begin(Reporting(), before, 6)  # type: ignore[arg-type]
        for r in (1, 2, 3):
            present(r, {"seen": {"validation_accuracy": before + r / 10}})
    assert reported == [(0.1, 1), (0.2, 2), (0.3, 3), (3.1, 4), (3.2, 5)]


def test_no_combination_of_lists_is_tried_twice(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    lists = SMALL.replace("{ low = 0.01, high = 1.0, log = true }", "{ values = [0.05, 0.1, 0.2, 0.4] }")
    recipe.write_text(lists.replace("trials = 3", "trials = 7").replace('"", "fedprox"', '"fedprox"'))
    pretended(lambda rate: rate)  # without the second key, so that the sampler wants the best rate again and again
    (result,) = _tune(recipe, tmp_path).results
    assert len({tuple(trial.values.values()) for trial in result.trials}) == 7
    assert [trial.number for trial in result.trials] == [*range(7)]


def test_a_value_at_an_end_that_the_key_itself_has_is_no_reason_to_warn(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(SMALL + "local-epochs = { low = 1, high = 5 }\n")
    plan = read_plan(str(recipe), "rates", {"runs-dir": str(tmp_path)})
    for epochs, rate, expected in ((1, 0.3, set()), (5, 0.3, {"local-epochs"}), (1, 0.98, {"learning-rate"})):
        trial = Trial(0, "complete", {"local-epochs": epochs, "learning-rate": rate}, 0.5, 4, 2)
        tuning = Tuning(plan, [Result(plan.subjects[0], [trial], {}, maximised=True)])
        assert tuning.results[0].at_edge().keys() == expected
        assert [words.partition(" = ")[0] for words in tuning.warnings()] == [f"fedavg: {key}" for key in expected]


def test_failed_trials_are_recorded_and_wrong_ones_end_the_tuning(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]]
) -> None:
    def figure(rate: float) -> float:
        if rate != 0.05:
            raise RunError(f"'loss' is nan at {rate:g}")
        return 0.5

    pretended(figure, page=True)
    result = _tune(recipe, tmp_path).results[0]
    assert [trial.state for trial in result.trials] == ["complete", "failed", "failed"]
    assert result.trials[1].reason.startswith("'loss' is nan at ")
    assert result.importances == {}
    page = (tmp_path / "tune-small-rates" / "report.md").read_text()
    assert "| fedavg | learning-rate = 0.05 | 50.0 | 50.0 | 1 | 0 | 2 |" in page
    assert "failed: 'loss' is nan at" in page
    for error in (ConfigurationError("momentum: wrong"), FileError("disk full")):

        def wrong(rate: float, error: Exception = error) -> float:
            raise error

        pretended(wrong)
        with pytest.raises(type(error), match=str(error)):
            _tune(recipe, tmp_path / "other")


@pytest.mark.long
def test_a_short_list_is_tried_as_a_whole(recipe: Path, tmp_path: Path) -> None:
    """Three values of the rate, once each although there are four trials; six combinations are too many."""
    short = SMALL.replace("{ low = 0.01, high = 1.0, log = true }", "{ values = [0.2, 0.05, 0.1] }")
    recipe.write_text(short.replace("trials = 3", "trials = 4"))
    fedavg, fedprox = _tune(recipe, tmp_path).results
    assert [trial.values["learning-rate"] for trial in fedavg.trials] == [0.05, 0.2, 0.1]
    assert fedprox.trials[0].values == {"learning-rate": 0.05, "fedprox.mu": 0.01}
    assert len(fedprox.trials) == 4  # sampled


def test_clients_that_diverge_do_not_improve_the_mean(
    recipe: Path, tmp_path: Path, pretended: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(lambda rate: 0.5)
    inner = trials.run_experiment

    def run(*arguments: Any) -> Path:
        path = inner(*arguments)
        lines = [{"round": 4, "phase": "test", "client": "7", "reason": "'loss' is inf"},
                 {"round": 4, "phase": "train", "client": "1", "reason": "was measured later"}]  # fmt: skip
        (path / "failures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    monkeypatch.setattr(trials, "run_experiment", run)
    tuning = _tune(recipe, tmp_path)
    assert {(one.state, one.reason) for result in tuning.results for one in result.trials} == {
        ("failed", "1 clients could not be measured; client 7: 'loss' is inf")
    }
    assert "all 3" not in str(tuning.warnings())
    with pytest.raises(RunError, match=r"no trial of fedavg, fedprox completed; .*report.md says why"):
        tuning.require_choices()
    assert tomllib.loads((tmp_path / "tune-small-rates" / "tuned.toml").read_text())["methods"] == {}
    with pytest.raises(ConfigurationError, match=r"'local' was not tuned in .* Tuned: none"):
        fl.compare(["local"], recipe, tuned="rates", runs_dir=tmp_path)


def test_without_an_example_to_validate_with(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no client has a validation example.* Raise validation-f"):
        _tune(recipe, tmp_path, **{"validation-fraction": 0.001})


# ------------------------------------------------------------------------------------ how it is used


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Return the configurations of the runs that `compare` would carry out."""
    wanted: list[Mapping[str, Any]] = []

    class Stop(Exception):  # noqa: N818 (no error)
        pass

    def choose(name: str, workers: int, configs: list[Mapping[str, Any]], *_: Any, **__: Any) -> None:
        wanted.extend(configs)
        raise Stop

    monkeypatch.setattr("florilegium.apps.sweeps.named_runs.choose", choose)
    return wanted


def test_compare_takes_the_chosen_values(
    tuned: tuple[Path, Path, Tuning], compared: list[Mapping[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    recipe, runs, tuning = tuned
    best = {result.subject.name: result.best.values for result in tuning.results if result.best}
    data = _data(poisoned=False)
    words = ["compare", "fedavg", "fedprox", "--recipe", str(recipe), "--tuned", "rates", "--runs-dir", str(runs)]
    CliRunner().invoke(cli, [*words, "--set", "rounds=9", "--set", "seed=4", "--set", f"dataset={data}"])
    assert [config["method"] for config in compared] == ["fedavg", "fedprox"]
    for config in compared:
        assert {key: config[key] for key in best[config["method"]]} == best[config["method"]]
        assert (config["rounds"], config["seed"], config["runs-dir"]) == (9, 4, str(runs))
        assert "evaluate-on" not in config
        assert "validation-fraction" not in config
    assert "tuned with other settings" not in caplog.text
    file = str(runs / "tune-small-rates" / "tuned.toml")
    with pytest.raises(Exception):  # noqa: B017, PT011
        fl.compare(["fedprox"], recipe, tuned=file, seeds=[1, 2], momentum=0.5, dataset=data)
    assert [config["seed"] for config in compared[2:]] == [1, 2]
    assert all(config["fedprox.mu"] == best["fedprox"]["fedprox.mu"] for config in compared[2:])
    assert "fedprox was tuned with other settings. momentum: was 0.0, is 0.5" in caplog.text
    for methods, given, said in (
        (["fedavg", "local"], {}, "--tuned: 'local' was not tuned in .*tuned.toml.* Tuned: fedavg, fedprox"),
        (["fedavg"], {"learning_rate": 0.1}, "learning-rate: --tuned sets it for 'fedavg'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            fl.compare(methods, recipe, tuned="rates", runs_dir=runs, **given)
    with pytest.raises(ConfigurationError, match="--tuned needs a recipe"):
        fl.compare(["fedavg"], tuned="rates", runs_dir=runs)
    with pytest.raises(ConfigurationError, match=r"first carry out `florilegium tune .* other` to its end"):
        fl.compare(["fedavg"], recipe, tuned="other", runs_dir=runs)


def test_what_was_tuned_as_a_variant_is_run_as_one(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text("[variants.quick]\nmethod = 'fedprox'\nmomentum = 0.5\n")
    file = tmp_path / "kept.toml"
    file.write_text(
        "[methods.quick]\nmethod = 'fedprox'\nvariant = 'quick'\nkeys = { learning-rate = 0.2 }\nsettings = {}\n"
    )
    keys = read_tuned(recipe, str(file), "").run("quick", ["rounds=4"], {"method": "quick"})
    assert keys == {"method": "fedprox", "momentum": 0.5, "rounds": 4, "learning-rate": 0.2}
    for text in ("[methods.quick]\nvariant = ''\n", "[methods]\nquick = 3\n", "x", ""):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"kept.toml is not the result of a tuning"):
            read_tuned(recipe, str(file), "")


def test_from_python_and_the_command_line(tuned: tuple[Path, Path, Tuning], tmp_path: Path) -> None:
    recipe, runs, tuning = tuned
    found = fl.tune(recipe, "rates", runs_dir=runs, cache_dir=str(CACHE), dataset=_data(poisoned=False))
    assert found.best == {result.subject.name: result.best.values for result in tuning.results if result.best}
    assert list(found.table["objective"]) == [one.objective for result in tuning.results for one in result.trials]
    assert found.table["fedprox.mu"].isna().sum() == 3
    curve = found.plot().axes[0]
    best = next(line.get_ydata() for line in curve.lines if line.get_label() == "fedavg")
    assert list(best) == list(np.maximum.accumulate([100 * one.objective for one in tuning.results[0].trials]))
    words = ["tune", str(recipe), "rates", "--runs-dir", str(runs), "--set", f"dataset={_data(poisoned=False)}"]
    result = CliRunner().invoke(cli, [*words, "--set", f"cache-dir={CACHE}"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == str(runs / "tune-small-rates")
    for name in ("report.png", "report.svg"):
        assert (runs / "tune-small-rates" / name).stat().st_size > 1000


def test_without_optuna(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigurationError, match=r"pip install optuna"):
        _tune(recipe, tmp_path)


def test_evaluations_may_measure_on_validation_examples(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"runs_dir": tmp_path, "cache_dir": str(CACHE), "num_clients": 3, "rounds": 1,
                            "model": "linear", "progress": False, "engine": "process"}  # fmt: skip
    with pytest.raises(ConfigurationError, match="evaluate-on: no example is held out: set validation-fraction"):
        fl.run(evaluate_on="validation", **keys)
    runs = [fl.run(evaluate_on=what, validation_fraction=0.3, **keys) for what in ("test", "validation")]
    on_test, on_validation = (read_metrics(run.path)[-1]["seen"] for run in runs)
    assert on_validation["accuracy"] == on_validation["validation_accuracy"] == on_test["validation_accuracy"]
    assert on_test["accuracy"] != on_test["validation_accuracy"]
