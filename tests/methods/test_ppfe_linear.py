"""PPFE for linear regression: each baseline and the closed forms against scikit-learn's Ridge."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file
from sklearn.linear_model import Ridge

from florilegium.apps.assembly.early_checks import check_early
from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.apps.runs.personal import personalise
from florilegium.apps.runs.predictions import write_predictions
from florilegium.clients.ppfe_linear import WEIGHT, combined, ridge
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import CPU
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import config, settings

KEYS: dict[str, Value] = {
    "method": "ppfe-linear", "dataset": "synthetic-linear", "partitioner": "natural", "model": "linear",
    "weighting": "uniform", "num-clients": 4, "samples-per-client": 150, "participation": 1.0, "rounds": 4,
    "evaluate-every": 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _sklearn(x: np.ndarray, y: np.ndarray, λ: float, ω: np.ndarray | None = None) -> np.ndarray:
    # scikit-learn's penalty is not divided by n.
    return Ridge(alpha=λ * len(y), fit_intercept=False).fit(x, y, sample_weight=ω).coef_


def _train(client: int, **keys: Value) -> tuple[np.ndarray, np.ndarray]:
    examples = SimulatedClients(settings(**{**KEYS, **keys}), CPU).data(str(client)).train
    return examples.x.double().numpy(), examples.y.double().flatten().numpy()


@pytest.mark.parametrize("keys", [{"rounds": 3}, {"model": "mlp"}])
def test_its_conditions_are_checked_before_anything_starts(keys: dict[str, Value]) -> None:
    with pytest.raises(ConfigurationError, match=r"rounds, model: ppfe-linear works on model = 'linear' .* 4 stages"):
        check_early(config(**{**KEYS, **keys}))
    check_early(config(**KEYS))


class TestRidge:
    def test_scikit_learn_agrees(self) -> None:
        rng = np.random.default_rng(1)
        x, y, ω = rng.normal(size=(30, 5)), rng.normal(size=30), rng.uniform(0.1, 3, size=30)
        both = ridge(x, [y, 2 * y], ω, [0.3, 0.05])
        np.testing.assert_allclose(both, [_sklearn(x, y, 0.3, ω), _sklearn(x, 2 * y, 0.05, ω)])

    def test_the_gradient_vanishes(self) -> None:
        rng = np.random.default_rng(2)
        x, y, ω = rng.normal(size=(20, 8)), rng.normal(size=20), rng.uniform(size=20)
        φ = ridge(x, [y], ω, [0.1])[0]
        gradient = -2 / 20 * x.T @ (ω * (y - x @ φ)) + 2 * 0.1 * φ
        np.testing.assert_allclose(gradient, 0, atol=1e-12)

    def test_ensembles(self) -> None:
        members = np.array([[1.0, 0], [0, 1]])
        np.testing.assert_allclose(combined(members, np.array([3.0, 1])), [0.75, 0.25])
        np.testing.assert_allclose(combined(members, np.zeros(2)), [0.5, 0.5])


class TestBaselines:
    def test_an_averaged_stage_is_the_mean_of_the_clients_solutions(self, run: Runs) -> None:
        one = {"rounds": 1, "ppfe-linear.stages": "averaged", "ppfe-linear.penalties": "0.1"}
        found = read_checkpoint(run("averaged", **one)).arrays[WEIGHT][0]
        np.testing.assert_allclose(found, np.mean([_sklearn(*_train(k), 0.1) for k in range(4)], axis=0), rtol=1e-4)

    def test_a_local_stage_is_each_client_alone_with_a_penalty_of_its_own(self, run: Runs) -> None:
        grid = (0.1, 30.0)  # the second is far too large: a client that chose it would be seen
        one = {"rounds": 1, "ppfe-linear.stages": "local", "ppfe-linear.penalties": "30,0.1"}
        figures = read_metrics(run("local", **one))[-1]["seen"]
        errors = {λ: np.mean([_error(k, _sklearn(*_train(k), λ)) for k in range(4)]) for λ in grid}
        assert errors[0.1] < 0.9 * errors[30.0]
        np.testing.assert_allclose(figures["loss"], errors[0.1], rtol=1e-4)


def _error(client: int, w: np.ndarray) -> float:
    test = SimulatedClients(settings(**KEYS), CPU).data(str(client)).test
    return float(((test.y.flatten().numpy() - test.x.double().numpy() @ w) ** 2).mean())


def _losses(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.minimum((y - x @ w) ** 2 / (y**2).mean(), 1)


def test_two_stages_by_hand(run: Runs, tmp_path: Path) -> None:
    λ, clients = 0.5, [_train(k) for k in range(4)]
    path = run("two", rounds=2, **{"ppfe-linear.stages": "averaged,personal", "ppfe-linear.penalties": str(λ),
                                   "ppfe-linear.exchanges": 2})  # fmt: skip
    first = np.mean([_sklearn(x, y, λ) for x, y in clients], axis=0)
    ω, β1 = [], []
    for x, y in clients:
        ε = _losses(x, y, first).mean()
        β1.append(max(0.0, 0.5 * np.log((1 - ε) / ε)))
        heavier = np.exp(β1[-1] * _losses(x, y, first))
        ω.append(heavier / heavier.mean())
    assert max(weights.max() for weights in ω) > 1.1  # the weights matter
    ψ = first
    for _ in range(2):
        ψ = np.mean([ψ + _sklearn(x, y - x @ ψ, λ, w) for (x, y), w in zip(clients, ω, strict=True)], axis=0)
    np.testing.assert_allclose(read_checkpoint(path).arrays[WEIGHT][0], ψ, rtol=1e-4)
    for k, (x, y) in enumerate(clients):
        second = ψ + _sklearn(x, y - x @ ψ, λ, ω[k])
        ε = (ω[k] * _losses(x, y, second)).mean()
        β2 = 0.5 * np.log((1 - ε) / ε)
        kept = load_file(next((path / "clients" / str(k)).glob("state-000002-*")))
        np.testing.assert_allclose(kept["members"], [first, second], rtol=1e-4)
        np.testing.assert_allclose(kept["betas"], [β1[k], β2], rtol=1e-4)
    ensemble = [(β1[k] * first + β2 * second) / (β1[k] + β2)]  # of the last client
    with (path / "clients.csv").open() as file:
        np.testing.assert_allclose(float(list(csv.DictReader(file))[-1]["loss"]), _error(3, ensemble[0]), rtol=1e-4)


def test_a_huge_penalty_leaves_nothing_personal(run: Runs) -> None:
    averaged: dict[str, Value] = {"rounds": 1, "ppfe-linear.stages": "averaged"}
    both: dict[str, Value] = {"rounds": 2, "ppfe-linear.stages": "averaged,personal"}
    plain = read_checkpoint(run("plain", **averaged, **{"ppfe-linear.penalties": "0.1"})).arrays[WEIGHT]
    found = read_metrics(run("whole", **both, **{"ppfe-linear.penalties": "0.1"}))[-1]["seen"]
    frozen = run("frozen", **both, **{"ppfe-linear.penalties": "1e7"})
    model, figures = read_checkpoint(frozen).arrays[WEIGHT], read_metrics(frozen)[-1]["seen"]
    assert np.abs(plain).max() > 0.05
    assert found["loss_stage2"] < 0.95 * found["loss_stage1"]
    np.testing.assert_allclose(model, 0, atol=1e-5)
    np.testing.assert_allclose(figures["loss_stage2"], figures["loss_stage1"], rtol=1e-4)


class TestRuns:
    def test_no_penalty_is_larger_than_the_one_before(self, run: Runs) -> None:
        stages = json.loads((run("whole") / "summary.json").read_text())["ppfe"]["stages"]
        penalties = [stage["penalty"] for stage in stages if stage["stage"] == "personal"]
        assert [stage["stage"] for stage in stages] == ["averaged", "personal", "personal", "personal"]
        assert penalties == sorted(penalties, reverse=True)

    @pytest.mark.long
    def test_it_beats_both_baselines_where_clients_are_alike_in_part(self, run: Runs) -> None:
        keys: dict[str, Value] = {"num-clients": 12, "personalisation-ratio": "0.3"}
        losses = {
            name: read_metrics(run(name, **keys, **own))[-1]["seen"]["loss"]
            for name, own in {
                "ppfe": {},
                "fedavg": {"rounds": 1, "ppfe-linear.stages": "averaged"},
                "local": {"rounds": 1, "ppfe-linear.stages": "local"},
            }.items()
        }
        assert losses["ppfe"] < min(losses["fedavg"], losses["local"])

    def test_packing_does_not_matter(self, run: Runs) -> None:
        figures = [read_metrics(run(f"nodes{n}", nodes=n))[-1]["seen"] for n in (1, 3)]
        for name, value in figures[0].items():
            np.testing.assert_allclose(figures[1][name], value, rtol=1e-6)

    def test_clients_of_one_size_weigh_alike(self, run: Runs) -> None:
        figures = [read_metrics(run(how, weighting=how))[-1]["seen"] for how in ("examples", "uniform")]
        for name, value in figures[0].items():
            np.testing.assert_allclose(figures[1][name], value, rtol=1e-6)

    def test_a_run_that_died_in_its_third_stage_resumes_to_the_same(self, run: Runs, tmp_path: Path) -> None:
        def die(message: Message) -> None:
            if message.content.get("config", {"round": 0})["round"] == 3:
                raise KeyboardInterrupt

        whole = read_checkpoint(run("whole"))
        with pytest.raises(KeyboardInterrupt):
            run("parts", intercept=die)
        assert read_checkpoint(tmp_path / "parts").round == 2
        run("parts", resume="parts")
        parts = read_checkpoint(tmp_path / "parts")
        np.testing.assert_array_equal(parts.arrays[WEIGHT], whole.arrays[WEIGHT])
        assert parts.facts["own"] == whole.facts["own"]

    def test_stages_and_rounds_must_agree(self, run: Runs) -> None:
        with pytest.raises(ConfigurationError, match=r"a round for each of its 4 stages.*found: 3 rounds"):
            run("wrong", rounds=3)
        with pytest.raises(ConfigurationError, match="comma-separated list of the words"):
            run("wrong", **{"ppfe-linear.stages": "averaged,shared"})


def test_the_exported_model_is_the_ensemble(run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run("exported")
    model = personalise(path, tmp_path / "model", "1")
    test = SimulatedClients(settings(**KEYS), CPU).data("1").test
    np.save(tmp_path / "x.npy", test.x.double().numpy())
    write_predictions(model, tmp_path / "x.npy")
    lines = capsys.readouterr().out.splitlines()
    predicted = np.array([float(line.split(",")[1]) for line in lines[lines.index("row,value") + 1 :]])
    with (path / "clients.csv").open() as file:
        reported = {row["client"]: float(row["loss"]) for row in csv.DictReader(file)}
    np.testing.assert_allclose(((test.y.flatten().numpy() - predicted) ** 2).mean(), reported["1"], rtol=1e-4)
