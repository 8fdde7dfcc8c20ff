"""The Python interface: runs, their tables and models, interruptions, your own objects as values."""

from __future__ import annotations

import ast
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import florilegium as fl
from florilegium.apps.origins.packages import modules, version_of
from florilegium.models.parameters import get_arrays
from florilegium.strategies.core.rounds import Rounds
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.processes import ROOT
from tests.support import CACHE, assert_rounded

QUICK: dict[str, Any] = {
    "cache_dir": str(CACHE), "num_clients": 4, "rounds": 3, "local_epochs": 1, "evaluate_every": 1, "progress": False,
}  # fmt: skip


class Halved(fl.FedAvgClient):
    """FedAvg whose gradients are halved."""

    def gradient_hook(self) -> Any:
        def hook(model: nn.Module, rows: torch.Tensor) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)

        return hook


class HalvedKeys(fl.Section):
    """Keys of a method."""

    factor: float = fl.key(0.5, "factor on gradients", gt=0, le=1)


class ScaledClient(fl.FedAvgClient):
    """A method with a key of its own."""

    hyper: HalvedKeys

    def gradient_hook(self) -> Any:
        def hook(model: nn.Module, rows: torch.Tensor) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(self.hyper.factor)

        return hook


SCALED = fl.Method("Scaled gradients", "a test", client=ScaledClient, keys=HalvedKeys)


def _made_by(kind: Any) -> Any:
    def make(settings: Any, rows: Any, seed: int) -> Any:
        return kind(settings.num_clients)

    return make


def _hidden(width: int) -> Any:
    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, width)), nn.ReLU(), nn.Linear(width, classes))

    return build


CHANGING = {"rows": 0}


def changing() -> Any:
    y = np.arange(CHANGING["rows"]) % 2
    return y[:, None].astype(np.float32) + np.arange(len(y))[:, None], y


class EveryOtherKeys(fl.Section):
    """Keys of a partitioner."""

    shift: int = fl.key(0, "offset of the first client's rows", ge=0)


def _every_other(settings: Any, rows: Any, seed: int) -> Any:
    from flwr_datasets.partitioner import Partitioner

    shift = settings.own_keys(EveryOtherKeys).shift

    class EveryOther(Partitioner):
        @property
        def num_partitions(self) -> int:
            return int(settings.num_clients)

        def load_partition(self, partition_id: int) -> Any:
            first = (partition_id + shift) % settings.num_clients
            return self.dataset.select(range(first, len(self.dataset), settings.num_clients))

    return EveryOther()


EVERY_OTHER = fl.Partitioning("Every other row", make=_every_other, keys=EveryOtherKeys, rows="all")


def shallow(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


@pytest.fixture
def go(tmp_path: Path) -> Any:
    """A function that carries out a small run in a folder of its own."""
    return lambda *recipe, **keys: fl.run(*recipe, **{**QUICK, "runs_dir": tmp_path, **keys})


def _arrays(run: fl.Run) -> dict[str, Any]:
    return read_checkpoint(run.path).arrays


class TestRun:
    def test_tables_are_those_of_the_files(self, go: Any) -> None:
        run = go(unseen_fraction=0.25, fedprox={"mu": 0.3}, method="fedprox", run_name="mine")
        assert run.state == "completed"
        assert run.config["fedprox.mu"] == 0.3
        lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        expected = [
            (line["round"], group, line[group]["accuracy"])
            for line in lines for group in ("seen", "unseen") if group in line
        ]  # fmt: skip
        assert list(run.metrics[["round", "group", "accuracy"]].itertuples(index=False, name=None)) == expected
        assert "training" not in run.metrics
        assert run.training["round"].tolist() == [1, 2, 3]
        assert run.training["loss"].tolist() == [line["training"]["loss"] for line in lines]
        assert run.training["seconds_train"].tolist() == [line["training"]["seconds"]["train"] for line in lines]
        assert set(run.clients["client"]) == {"0", "1", "2", "3"}
        assert run.clients["accuracy"].between(0, 1).all()
        assert list(run.failures.columns) == ["round", "phase", "client", "reason"]
        assert run.summary["final"]["seen"]["accuracy"] == expected[-2][2]
        assert fl.open("mine", run.path.parent).path == run.path
        listed = fl.runs(run.path.parent)
        assert listed.loc[0, ["name", "state", "method", "rounds"]].tolist() == ["mine", "completed", "fedprox", 3]
        assert isinstance(run.plot(), matplotlib.figure.Figure)

    def test_models_are_the_global_one_and_each_clients_own(self, go: Any) -> None:
        run = go(method="ditto")
        arrays = _arrays(run)
        finished = get_arrays(run.model())
        assert finished.keys() == arrays.keys()
        assert all(np.array_equal(array, arrays[name]) for name, array in finished.items())
        accuracy = run.clients.set_index("client").loc["2", "accuracy"]
        model = run.model(2)
        federation = fl.partition(**{key: QUICK[key] for key in ("cache_dir", "num_clients")})
        from florilegium.partitions.clientdata import simulated

        test = simulated(federation._federation, federation._dataset, 2).test
        assert float((model(test.x).argmax(dim=1) == test.y).float().mean()) == pytest.approx(accuracy)
        assert not np.array_equal(get_arrays(model)["fc1.1.weight"], arrays["fc1.1.weight"])

    def test_predictions_are_the_models(self, go: Any) -> None:
        run = go()
        pixels = np.random.default_rng(0).integers(0, 17, size=(5, 8, 8, 1), dtype=np.uint8)
        table = run.predict(pixels, client=1)
        from florilegium.partitions.clientdata import to_inputs
        from florilegium.partitions.datasets import find_spec

        outputs = run.model(1)(to_inputs(find_spec("digits"), pixels)).softmax(dim=1)
        assert table["class"].tolist() == outputs.argmax(dim=1).tolist()
        np.testing.assert_allclose(table["probability"], outputs.max(dim=1).values.numpy(), rtol=1e-6)

    def test_an_audit_is_that_of_the_study(self, go: Any) -> None:
        run = go(canaries=40)
        found = run.audit()
        from florilegium.research.attacks.audit import audit

        expected = audit(run.path)
        assert (found["canaries"], found["correct"], found["advantage"]) == (40, expected.correct, expected.advantage)
        assert found["epsilon_at_least"] == expected.bound
        assert found["epsilon_claimed"] == math.inf
        with pytest.raises(fl.RunError, match="0 canaries"):
            go(rounds=1).audit()

    def test_a_run_is_named_after_its_dataset_not_after_the_arrays_hash(self, go: Any) -> None:
        x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        run = go(dataset=(x, np.arange(40) % 2), model="linear", partitioner="iid", rounds=1)
        assert "-fedavg-arrays-" in run.name

    def test_flowers_log_goes_to_the_runs_file_alone(self, go: Any, capfd: pytest.CaptureFixture[str]) -> None:
        root, printing = logging.getLogger(), logging.StreamHandler(sys.stderr)  # as importing Opacus adds one
        root.addHandler(printing)
        try:
            run = go(rounds=1)
        finally:
            root.removeHandler(printing)
        assert "round 1" in (run.path / "run.log").read_text()
        assert "round 1" not in capfd.readouterr().err
        assert logging.getLogger("flwr").propagate

    def test_a_method_without_a_global_model_says_so(self, go: Any) -> None:
        run = go(method="fedper")
        with pytest.raises(fl.ConfigurationError, match="no global model"):
            run.model()
        assert isinstance(run.model(0), nn.Module)
        with pytest.raises(fl.ConfigurationError, match="there is no client '9'"):
            run.model(9)

    def test_the_process_keeps_its_threads_and_random_state(self, go: Any) -> None:
        before, state = torch.get_num_threads(), torch.get_rng_state()
        torch.set_num_threads(2)
        try:
            go()
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_callback_follows_the_run_and_ends_it(self, go: Any) -> None:
        seen: list[tuple[int, float]] = []

        def follow(round: int, figures: dict[str, dict[str, float]]) -> bool:
            seen.append((round, figures["seen"]["accuracy"]))
            return round == 2

        run = go(rounds=9, on_evaluation=follow)
        assert [(row["round"], row["accuracy"]) for _, row in run.metrics.iterrows()] == seen
        assert [round for round, _ in seen] == [1, 2]
        assert run.state == "completed"
        assert run.summary["rounds"] == 2
        whole = go(rounds=3)
        assert go(resume=run.name, rounds=3).summary["final"] == whole.summary["final"]

    def test_what_a_callback_returns_is_checked(self, go: Any) -> None:
        with pytest.raises(fl.ConfigurationError, match="on_evaluation: returned ndarray, which is neither"):
            go(on_evaluation=lambda round, figures: np.zeros(3))

    def test_runs_of_two_threads_wait_for_each_other(self, go: Any) -> None:
        going: list[int] = []

        def follow(round: int, figures: object) -> None:
            going.append(threading.get_ident())

        levels = [handler.level for handler in logging.getLogger("flwr").handlers]
        threads = [threading.Thread(target=go, kwargs={"on_evaluation": follow, "seed": n}) for n in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(going) == 6
        assert len({*going[:3]}) == 1  # one run's rounds, then the other's
        assert [handler.level for handler in logging.getLogger("flwr").handlers] == levels

    def test_what_a_notebook_defined_is_not_known_elsewhere(self, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "typed_in", shallow, raising=False)
        run = go(model="__main__:typed_in")
        monkeypatch.undo()
        with pytest.raises(fl.ConfigurationError, match=r"'__main__:typed_in': it was defined in a notebook or script"):
            run.model()


class TestInterruption:
    def test_ctrl_c_ends_after_a_whole_round_and_the_run_goes_on_bit_for_bit(self, go: Any) -> None:
        whole = go(rounds=4, evaluate_every=4)

        def press(round: int, figures: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match=r"stopped after round 2.*fl\.run\(resume='broken', runs_dir='"):
            go(rounds=4, evaluate_every=2, run_name="broken", on_evaluation=press)
        assert signal.getsignal(signal.SIGINT) is before
        broken = fl.open("broken", whole.path.parent)
        assert broken.state == "stopped"
        assert read_checkpoint(broken.path).round == 2
        resumed = go(rounds=4, evaluate_every=4, resume="broken")
        assert resumed.state == "completed"
        first, second = _arrays(whole), _arrays(resumed)
        assert all(np.array_equal(array, second[name]) for name, array in first.items())

    def test_a_run_stopped_while_it_reports_its_progress_has_a_checkpoint(
        self, go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = Rounds._report_progress

        def press(self: Rounds, state: str, done: int, last: int) -> None:
            report(self, state, done, last)
            if done == 1 and state == "running":
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(Rounds, "_report_progress", press)
        with pytest.raises(KeyboardInterrupt, match="stopped after round 2"):
            go(rounds=4, evaluate_every=0, run_name="broken")
        assert read_checkpoint(tmp_path / "broken").round == 2

    def test_a_run_stopped_before_its_first_checkpoint_begins_anew(self, go: Any, tmp_path: Path) -> None:
        broken = go(rounds=2)
        for file in (broken.path / "checkpoint").iterdir():
            file.unlink()
        expected = _arrays(go(rounds=2))
        resumed = _arrays(go(rounds=2, resume=broken.name))
        assert all(np.array_equal(array, resumed[name]) for name, array in expected.items())

    def test_a_failed_run_says_so(self, go: Any, tmp_path: Path) -> None:
        with pytest.raises(fl.RunError):
            go(learning_rate=1e9, optimizer="sgd", run_name="diverges", min_success=1.0, rounds=9)
        assert fl.open("diverges", tmp_path).state == "failed"


class TestOwnObjects:
    def test_a_client_class_is_a_method(self, go: Any) -> None:
        """Halved gradients are a halved learning rate."""
        halved, plain = go(method=Halved, learning_rate=0.1), go(learning_rate=0.05)
        assert halved.config["method"] == "tests.apps.api.test_api:Halved"
        for name, array in _arrays(plain).items():
            assert_rounded(_arrays(halved)[name], array)

    def test_a_method_has_keys_of_its_own(self, go: Any) -> None:
        run = go(method=SCALED, scaled={"factor": 0.25}, learning_rate=0.2)
        assert run.config["scaled.factor"] == 0.25
        for name, array in _arrays(go(learning_rate=0.05)).items():
            assert_rounded(_arrays(run)[name], array)
        with pytest.raises(fl.ConfigurationError, match=r"scaled.factor: .*less than or equal to 1 \(found: 3.0\)"):
            go(method=SCALED, scaled={"factor": 3.0})
        with pytest.raises(fl.ConfigurationError, match=r"scaled.fctor: there is no such key; did you mean 'scaled.f"):
            go(method=SCALED, scaled={"fctor": 0.3})

    def test_a_function_is_a_network(self, go: Any) -> None:
        assert [tuple(array.shape) for array in _arrays(go(model=shallow)).values()] == [(10, 64), (10,)]

    def test_arrays_are_a_dataset_whose_clients_have_names(self, go: Any) -> None:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, size=80)
        x = (rng.normal(size=(80, 5)) + 3 * y[:, None]).astype(np.float32)
        names = [f"site-{number % 3}" for number in range(80)]
        own = {"num_clients": 0, "partitioner": "natural", "model": "linear", "cache_dir": str(CACHE)}
        run = go(dataset={"train": (x[:60], y[:60], names[:60]), "test": (x[60:], y[60:], names[60:])}, **own)
        assert run.clients["name"].tolist() == ["site-0", "site-1", "site-2"]
        assert run.clients["test_examples"].tolist() == [names[60:].count(f"site-{number}") for number in range(3)]
        by_name, by_number = run.model("site-1"), run.model(1)
        for first, second in zip(by_name.parameters(), by_number.parameters(), strict=True):
            assert torch.equal(first, second)
        logits = by_name(torch.from_numpy(x[60:]))
        assert run.predict(x[60:], client="site-1")["class"].tolist() == logits.argmax(dim=1).tolist()
        assert (
            fl.partition(dataset=(x, y), partitioner="iid", num_clients=2, cache_dir=str(CACHE)).counts.to_numpy().sum()
            == 64
        )
        with pytest.raises(fl.ConfigurationError, match=r"dataset: arrays are given as .*found: trian"):
            go(dataset={"trian": (x, y)})
        with pytest.raises(fl.DataError, match="x has 60 rows, y has 59 rows"):
            go(dataset=(x[:60], y[:59]))

    def test_a_function_whose_arrays_have_changed_is_called_again(self, go: Any) -> None:
        """So are a changed file and a class that was defined anew in a notebook."""
        own = {"dataset": changing, "partitioner": "iid", "model": "linear", "num_clients": 2}
        for count in (40, 60):
            CHANGING["rows"] = count
            assert fl.partition(**own, cache_dir=str(CACHE)).clients["train"].sum() == 0.8 * count
            assert go(**own, rounds=1).clients["train_examples"].sum() == 0.8 * count

    def test_a_network_that_was_defined_anew_is_built_anew(self, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a method keeps the network's shape, too."""
        for width in (8, 16):
            monkeypatch.setattr(sys.modules["__main__"], "net", _hidden(width), raising=False)
            run = go(method="fedsr", model="__main__:net", rounds=1)
            assert run.model(0)[2].weight.shape == (10, width)

    def test_a_partitioner_that_was_defined_anew_divides_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also if another notebook had one of the same name."""
        from flwr_datasets.partitioner import IidPartitioner, LinearPartitioner

        for kind, even in ((IidPartitioner, True), (LinearPartitioner, False)):
            split = _made_by(kind)
            monkeypatch.setattr(sys.modules["__main__"], "split", split, raising=False)
            sizes = fl.partition(partitioner="__main__:split", num_clients=4, cache_dir=str(CACHE)).clients["train"]
            assert bool(sizes.max() - sizes.min() <= 1) is even

    def test_an_object_that_its_name_no_longer_means_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = shallow
        monkeypatch.setattr(sys.modules[__name__], "shallow", _hidden(4))
        with pytest.raises(fl.ConfigurationError, match=r"api:shallow' now means another object"):
            fl.partition(model=before)

    def test_methods_of_one_short_name_are_told_apart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "Halved", Halved, raising=False)
        keys = {**QUICK, "runs_dir": tmp_path, "rounds": 1}
        both = ["__main__:Halved", "tests.apps.api.test_api:Halved"]
        assert list(fl.compare(both, **keys).runs) == both
        with pytest.raises(fl.ConfigurationError, match="given twice"):
            fl.compare(["fedavg", "fedavg"], **keys)
        with pytest.raises(fl.ConfigurationError, match="run-name: several runs are named after"):
            fl.compare(["fedavg"], run_name="x", **keys)

    def test_a_partitioner_of_ones_own(self, go: Any) -> None:
        run = go(partitioner=EVERY_OTHER, num_clients=2, every_other={"shift": 1})
        sizes = run.clients["train_examples"].tolist()
        assert abs(sizes[0] - sizes[1]) <= 1
        assert run.config["every-other.shift"] == 1

    @pytest.mark.long
    def test_comparison_pools_seeds(self, tmp_path: Path) -> None:
        compared = fl.compare(["fedavg", Halved], seeds=[1, 2], **{**QUICK, "runs_dir": tmp_path, "rounds": 1})
        assert list(compared.runs) == ["fedavg", "Halved"]
        finals = [run.summary["final"]["seen"]["accuracy"] for run in compared.runs["fedavg"]]
        row = compared.table.set_index("method").loc["fedavg"]
        assert row["accuracy"] == pytest.approx(np.mean(finals))
        assert row["accuracy_se"] == pytest.approx(np.std(finals, ddof=1) / 2**0.5)
        assert row["seeds"] == 2
        assert isinstance(compared.plot(), matplotlib.figure.Figure)
        (pair,) = compared.pairs.to_dict("records")
        others = [run.summary["final"]["seen"]["accuracy"] for run in compared.runs["Halved"]]
        assert pair["difference"] == pytest.approx(np.mean(others) - np.mean(finals))
        assert pair["seeds_low"] <= pair["difference"] <= pair["seeds_high"]
        assert "Halved − fedavg" in (compared.report(tmp_path / "report") / "report.md").read_text()

    def test_finished_runs_of_a_comparison_are_reused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = {**QUICK, "runs_dir": tmp_path, "rounds": 1}
        first = fl.compare(["fedavg"], seeds=[1, 2], **keys)
        times = [(run.path / "summary.json").stat().st_mtime_ns for run in first.runs["fedavg"]]
        again = fl.compare(["fedavg", "local"], seeds=[2, 1], **keys)
        assert [(run.path / "summary.json").stat().st_mtime_ns for run in again.runs["fedavg"]] == times
        other = fl.compare(["fedavg"], seeds=[1], **{**keys, "learning_rate": 0.011})
        assert other.runs["fedavg"][0].name not in [run.name for run in first.runs["fedavg"]]
        monkeypatch.setattr("florilegium.apps.sweeps.named_runs.origins_of", lambda *_: {"dataset": "another"})
        assert fl.compare(["fedavg"], seeds=[1], **keys).runs["fedavg"][0].name != first.runs["fedavg"][0].name

    def test_sweep_is_a_table_of_runs(self, tmp_path: Path) -> None:
        recipe = tmp_path / "own.toml"
        recipe.write_text(
            'num-clients = 4\nrounds = 1\n[sweeps.alpha]\nover = "local-epochs"\nvalues = [1, 2]\n', encoding="utf-8"
        )
        swept = fl.sweep(str(recipe), "alpha", runs_dir=tmp_path / "runs", cache_dir=str(CACHE), progress=False)
        assert swept.table["value"].tolist() == [1, 2]
        assert [run.summary["final"]["seen"]["accuracy"] for run in swept.runs] == swept.table["accuracy"].tolist()
        assert swept.report.count("\n") >= 4

    def test_partition_counts_examples(self) -> None:
        shown = fl.partition(num_clients=5, classes_per_client=2, cache_dir=str(CACHE))
        assert shown.counts.shape == (5, 10)
        assert (shown.counts > 0).sum(axis=1).tolist() == [2] * 5
        assert shown.counts.sum(axis=1).tolist() == shown.clients["train"].tolist()
        assert shown.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows

    def test_partition_writes_folders_of_devices(self, tmp_path: Path) -> None:
        shown = fl.partition(num_clients=3, cache_dir=str(CACHE))
        folders = shown.write_devices(tmp_path / "devices")
        assert [folder.relative_to(tmp_path).as_posix() for folder in folders] == [f"devices/{i}" for i in range(3)]
        from florilegium.partitions.datasets import find_spec
        from florilegium.partitions.device_data import read_device

        data = [read_device(folder, find_spec("digits")) for folder in folders]
        assert [len(one.train) for one in data] == shown.clients["train"].tolist()
        assert [len(one.test) for one in data] == shown.clients["test"].tolist()

    def test_tables_of_what_there_is(self) -> None:
        assert fl.methods().loc["ppfe", "package"] == "florilegium"
        assert fl.datasets().loc["cifar10", "classes"] == 10
        assert fl.keys("fedprox.mu").loc["fedprox.mu", "default"] == 0.01


class Outdated(fl.FedAvgClient):
    """States what clients of earlier versions did."""

    example_gap = staticmethod(str)


class TestFailure:
    def test_names_of_earlier_versions_say_what_has_replaced_them(self) -> None:
        with pytest.raises(AttributeError, match=r"fl\.Training"):
            fl.only_gradients  # noqa: B018

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"model": lambda shape, classes: None}, "has no name that can be imported; define it at the top level"),
            ({"method": fl.Method("a", "b")}, "method: this Method has no name; assign it to a variable"),
            (
                {"learning_rate": [0.1]},
                "learning-rate: list .* is not a valid value; give a number, a string or a bool",
            ),
            ({"model": None}, "model: NoneType None is not a valid value"),
            ({"learning_rat": 0.1}, "learning-rat: there is no such key; did you mean 'learning-rate'"),
            ({"method": "nowhere.at.all:X"}, "method: 'nowhere.at.all:X' cannot be imported: .*no module 'nowhere'"),
            ({"method": "json:dumps"}, "method: 'json:dumps' is not a method: expected a florilegium.Method or"),
            (
                {"method": "tests.apps.api.test_api:Outdated"},
                "its client states example_gap, .* state training = fl.Train",
            ),
            ({"model": "tests.apps.api.test_api:QUICK"}, "model: .* is not a network: expected a function"),
            ({"model": "tests.apps.api.test_api:shalow"}, "has no 'shalow'; did you mean 'shallow'"),
            ({"engine": "dask"}, "engine: 'dask' is not an engine, nor 'auto'. Known: process, ray."),
            ({"workers": 0}, "workers: must be 1 or more"),
            ({"model": "__main__:X", "workers": 2}, "worker processes cannot import '__main__:X'"),
            ({"model": "__main__:X", "engine": "ray"}, "worker processes cannot import '__main__:X'"),
        ],
    )
    def test_a_wrong_value_is_named(self, go: Any, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(fl.ConfigurationError, match=message):
            go(**keys)

    def test_a_notebooks_own_method_needs_this_process(self, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "Halved", Halved, raising=False)
        with pytest.raises(fl.ConfigurationError, match=r"worker processes cannot import '__main__:Halved'"):
            go(method="__main__:Halved", engine="ray")
        assert go(method="__main__:Halved", rounds=1).state == "completed"

    def test_compare_wants_a_list(self) -> None:
        with pytest.raises(fl.ConfigurationError, match="give a list of methods"):
            fl.compare("fedavg")
        for seeds in (1, "12", [1.5]):
            with pytest.raises(fl.ConfigurationError, match=r"seeds: give a list of whole numbers.*found: "):
                fl.compare(["fedavg"], seeds=seeds)  # type: ignore[arg-type]


def test_public_names_exist_and_type_checkers_see_the_same() -> None:
    tree = ast.parse((ROOT / "florilegium" / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for branch in tree.body
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "_TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {name: f"florilegium.{where}" for name, where in fl._PUBLIC.items()}
    for name in fl.__all__:
        assert getattr(fl, name).__doc__, name


def test_importing_is_cheap() -> None:
    code = "import sys, florilegium; assert not {'torch', 'flwr', 'pandas', 'ray'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_code_outside_is_part_of_a_runs_identity() -> None:
    assert modules({"method": "tests.apps.api.test_api:Halved", "model": "mlp"}) == ["tests"]
    assert version_of("nowhere") == "nowhere (not installed)"
    assert version_of("numpy") == f"numpy {np.__version__}"


@pytest.mark.simulation
@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_the_command_lines_bit_for_bit(workers: int, go: Any, tmp_path: Path) -> None:
    """The same run from Python, whose workers start anew, and by the command line, whose workers are forked."""
    keys = {"method": "ditto", "rounds": 2}
    wanted = {key.replace("_", "-"): value for key, value in {**QUICK, **keys}.items() if key != "progress"}
    options = [f"--set={key}={value}" for key, value in wanted.items()]
    command = [sys.executable, "-m", "florilegium", "run", f"--workers={workers}", f"--runs-dir={tmp_path}", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    _assert_same(go(workers=workers, **keys), fl.open(done.stdout.strip().splitlines()[-1]))


@pytest.mark.simulation
@pytest.mark.long
def test_a_run_on_ray_is_followed(go: Any) -> None:
    keys = {"method": "ditto", "rounds": 2}
    rounds: list[int] = []
    ray = go(engine="ray", workers=1, on_evaluation=lambda round, figures: rounds.append(round), **keys)
    _assert_same(go(**keys), ray)
    assert rounds


def _assert_same(first: fl.Run, second: fl.Run) -> None:
    assert all(np.array_equal(array, _arrays(second)[name]) for name, array in _arrays(first).items())
    pd.testing.assert_frame_equal(first.clients, second.clients)
