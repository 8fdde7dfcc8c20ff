"""Pictures of clients, recovery of known laws, and whether simulated clients predict the training of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.settings.configuration import parse
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.federation import federate
from florilegium.research.studies.fidelity import Grid, accuracy, laws, study, write_fidelity
from florilegium.research.studies.heterogeneity import clients_of, distance, write_heterogeneity
from florilegium.research.studies.recovery import errors, normalised_error, write_recovery
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.support import CACHE, TASK, config

HISTOGRAMS: dict[str, Value] = {
    "method": "mdm", "model": "linear", "dataset": "histograms", "partitioner": "natural", "num-clients": 300,
    "samples-per-client": 20, "mdm-params": "high-2", "participation": 1.0, "rounds": 40, "evaluate-every": 0,
    "mdm.components": "2",
}  # fmt: skip


def _run(path: Path, **keys: Value) -> Path:
    names = {"runs-dir": str(path.parent), "run-name": path.name}
    return run_here(config(**{**HISTOGRAMS, **keys, **names}), path)


@pytest.fixture(scope="module")
def high(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has found the law of 300 clients."""
    return _run(tmp_path_factory.mktemp("mdm") / "high")


class TestHeterogeneity:
    def test_distance_is_what_has_to_be_moved(self) -> None:
        some, others = np.array([[4, 0], [0, 2]]), np.array([[0, 6], [3, 1]])
        # The second has a twin; the first's counterpart differs in a quarter of its share.
        assert distance(some, others) == pytest.approx((0.25 + 0) / 2)
        assert distance(some, some[::-1]) == 0

    @pytest.mark.long
    def test_simulated_clients_are_nearer_than_clients_alike(self, high: Path, tmp_path: Path) -> None:
        clients = clients_of(high)
        assert {counts.shape for counts in clients.values()} == {(300, 10)}
        np.testing.assert_array_equal(clients["IID"].sum(axis=1), clients["real"].sum(axis=1))
        gaps = {kind: distance(clients["real"], clients[kind]) for kind in ("MDM", "IID")}
        assert gaps["MDM"] < gaps["IID"]
        text = write_heterogeneity(high, tmp_path)
        assert (tmp_path / "heterogeneity.md").read_text() == text + "\n"
        assert min(Image.open(tmp_path / "heterogeneity.png").size) > 300

    def test_other_runs_have_no_law(self, tmp_path: Path) -> None:
        run = run_here(config(**{"rounds": 1, "num-clients": 4, "runs-dir": str(tmp_path)}), tmp_path / "fedavg")
        with pytest.raises(RunError, match="is one of method 'fedavg'"):
            clients_of(run)


class TestRecovery:
    @pytest.mark.long
    def test_errors_are_those_of_the_matched_components(self, high: Path, tmp_path: Path) -> None:
        name, of_alpha, of_tau = errors(high)
        assert name == "high-2"
        history = read_checkpoint(high).state
        assert len(of_alpha) == len(of_tau) == len(history["alpha"])
        # The wide component is the one with τ = 0.9 in the table, its second row.
        first = 2 * read_summary(high)["mdm"]["mixture"]  # the components of the start that was kept
        order = first + np.argsort(history["alpha"][-1][first : first + 2].sum(axis=1))
        assert of_tau[-1] == pytest.approx(normalised_error(history["tau"][-1][order], np.array([0.1, 0.9])))
        assert of_alpha[-1] < of_alpha[0]
        text = write_recovery([high], tmp_path)
        assert f"| high-2 | {of_alpha[-1]:.3f} |" in text
        assert (tmp_path / "recovery.png").exists()

    def test_normalised_error_is_the_norm_of_relative_ones(self) -> None:
        assert normalised_error(np.array([2.0, 3.0]), np.array([1.0, 4.0])) == pytest.approx(np.sqrt(1 + 1 / 16))

    @pytest.mark.long
    def test_an_unknown_law_cannot_be_compared(self, tmp_path: Path) -> None:
        run = _run(tmp_path / "three", **{"mdm.components": "3", "rounds": 1})
        with pytest.raises(RunError, match="has not fitted a named distribution"):
            errors(run)


RECIPE = f"""
method = "fedavg"
dataset = "digits"
model = "mlp"
partitioner = "mdm"
mdm-params = "high-2"
num-clients = 30
samples-per-client = 20
participation = 0.5
rounds = 3
cache-dir = "{CACHE}"
[variants.mdm]
method = "mdm"
participation = 1.0
rounds = 10
mdm.components = "1"
[variants.none]
rounds = 2
"""


class TestFidelity:
    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Path:
        (tmp_path / "small.toml").write_text(RECIPE)
        return tmp_path / "small.toml"

    def _carry_out(self, done: list[str]):
        def run(keys: Mapping[str, Value]) -> Path:
            done.append(str(keys["run-name"]))
            return run_here(config(**keys), Path(str(keys["runs-dir"])) / str(keys["run-name"]))

        return run

    @pytest.mark.parametrize("disjoint", [False, pytest.param(True, marks=pytest.mark.long)])
    def test_every_kind_of_clients_is_trained_once(self, recipe: Path, tmp_path: Path, disjoint: bool) -> None:
        grid, done = Grid([10], [0.05, 0.1], [1]), []
        where = {"runs-dir": str(tmp_path / "runs")}
        rows = study(str(recipe), where, grid, tmp_path / "runs", self._carry_out(done), disjoint=disjoint)
        assert len(done) == 1 + 2 * 4
        again = study(str(recipe), where, grid, tmp_path / "runs", self._carry_out(done), disjoint=disjoint)
        assert (again, len(done)) == (rows, 9)
        text = write_fidelity(rows, tmp_path / "report")
        gap = np.mean([abs(row["MDM"] - row["real"]) for row in rows])
        assert text.splitlines()[-1].split(" | ")[4] == f"{100 * gap:.2f}"
        assert (tmp_path / "report" / "fidelity.png").exists()

    @pytest.mark.long
    def test_a_failed_run_does_not_end_the_study(self, recipe: Path, tmp_path: Path) -> None:
        run = self._carry_out([])

        def fail_once(keys: Mapping[str, Value]) -> Path:
            if keys.get("learning-rate") == 0.2 and "IID" in str(keys["run-name"]):
                raise RunError("it diverged")
            return run(keys)

        where, grid = {"runs-dir": str(tmp_path / "runs")}, Grid([10], [0.1, 0.2], [1])
        rows = study(str(recipe), where, grid, tmp_path / "runs", fail_once, disjoint=False)
        assert [bool(np.isnan(row["IID"])) for row in rows] == [False, True]
        lines = write_fidelity(rows, tmp_path / "report").splitlines()
        assert "| failed |" in lines[-2]
        assert lines[-1].endswith(f"| {100 * abs(rows[0]['IID'] - rows[0]['real']):.2f} |")

    @pytest.mark.long
    def test_kinds_differ_in_what_they_say(self, recipe: Path, tmp_path: Path, high: Path) -> None:
        base = {"dataset": "digits", "partitioner": "mdm", "mdm-params": "high-2", "num-clients": 30,
                "samples-per-client": 20, "cache-dir": str(CACHE)}  # fmt: skip
        _, hyper = parse(config(**HISTOGRAMS))
        assert isinstance(hyper, MDMHyper)
        federations = {}
        for kind, keys in laws(base, high, hyper, tmp_path, disjoint=False).items():
            federation, dataset = federate(parse(config(**{**base, **keys}))[0])
            federations[kind] = federation.class_counts(dataset), federation.train.rows
        real, rows = federations["real"]
        np.testing.assert_array_equal(federations["conditional"][0], real)
        assert not np.array_equal(federations["conditional"][1], rows)
        assert (federations["IID"][0].sum(axis=1) == 20).all()
        # Shares of clients that are alike vary as multinomial ones do, by p(1 − p)/m; real ones by more. p are the
        # shares of the dataset, which are nearly equal, not of real clients.
        p = np.bincount(dataset.train.y) / len(dataset.train.y)
        pooled = {kind: counts.sum(axis=0) / counts.sum() for kind, (counts, _) in federations.items()}
        assert np.abs(pooled["IID"] - p).max() < 0.055 < np.abs(pooled["real"] - p).max()
        chance = (p * (1 - p) / 20).sum()
        spreads = {
            kind: (counts / counts.sum(axis=1, keepdims=True)).var(axis=0).sum()
            for kind, (counts, _) in federations.items()
        }
        assert spreads["IID"] == pytest.approx(chance, rel=0.3)
        assert min(spreads["real"], spreads["MDM"]) > 1.3 * chance

    def test_simulated_clients_may_have_other_rows(self) -> None:
        keys = {"dataset": "digits", "partitioner": "iid", "num-clients": 5, "server-examples": 600}
        (clients, _), (simulation, _) = (
            federate(parse(config(**keys, **{"share-out": who}))[0]) for who in ("clients", "server")
        )
        assert len(simulation.train.rows) == 600
        assert not set(clients.train.rows.tolist()) & set(simulation.train.rows.tolist())
        with pytest.raises(ConfigurationError, match="share-out: the server has no rows to share out"):
            federate(parse(config(**{**keys, "server-examples": 0, "share-out": "server"}))[0])

    def test_accuracy_is_over_all_test_examples(self, tmp_path: Path) -> None:
        from florilegium.clients.core.training import evaluate
        from florilegium.models.networks import build
        from florilegium.models.parameters import set_arrays

        keys = {"rounds": 2, "num-clients": 6, "runs-dir": str(tmp_path)}
        run = run_here(config(**keys), tmp_path / "run")
        settings = parse(config(**keys))[0]
        _, dataset = federate(settings)
        network = build(settings.model, dataset.spec.shape, dataset.spec.classes, 1)
        set_arrays(network, read_checkpoint(run).arrays)
        assert dataset.test is not None
        x = to_inputs(dataset.spec, np.asarray(dataset.test.x))
        expected = evaluate(network, Examples(x, torch.from_numpy(dataset.test.y)), task=TASK)["accuracy"]
        assert accuracy(run, settings) == pytest.approx(expected)

    def test_mistakes(self, recipe: Path, tmp_path: Path) -> None:
        grid, run = Grid([10], [0.1], [1]), self._carry_out([])
        recipe.write_text(RECIPE.replace("[variants.mdm]", "[variants.law]"))
        with pytest.raises(ConfigurationError, match="has no variant 'mdm'"):
            study(str(recipe), {}, grid, tmp_path / "runs", run, disjoint=False)
        recipe.write_text(RECIPE.replace('method = "mdm"', 'method = "fedavg"'))
        with pytest.raises(ConfigurationError, match="its variant 'mdm' must be of method 'mdm'"):
            study(str(recipe), {}, grid, tmp_path / "runs", run, disjoint=False)
        recipe.write_text(RECIPE.replace("num-clients = 30", "num-clients = 300"))
        with pytest.raises(DataError, match="use fewer clients, or smaller ones"):
            study(str(recipe), {"runs-dir": str(tmp_path)}, grid, tmp_path / "runs", run, disjoint=False)
