"""Client-level privacy: what leaves a host, the noise on sums, the account, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from opacus.accountants import PRVAccountant
from scipy.stats import chi2

from florilegium.apps.assembly.task_checks import fitting
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.wire import unpack
from florilegium.clients.fedavg import FedAvgClient
from florilegium.clients.layers.noise import WITHIN
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.folder.run_folder import RunFolder, read_checkpoint
from florilegium.strategies.layers.client_privacy import ClientPrivacy
from tests.runs import Runs
from tests.support import TASK, adapting, settings

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 8, "participation": 0.5, "rounds": 3, "local-epochs": 1,
    "learning-rate": 0.05, "batch-size": 32, "weighting": "uniform", "evaluate-every": 1, "privacy.unit": "client",
    "privacy.sampling": "fixed",
}  # fmt: skip
NO_CHANGE: dict[str, Value] = {"learning-rate": 1e-12, "momentum": 0.0}
"""Clients that all but stand still: what is released is noise."""


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _summary(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "summary.json").read_text())["privacy"])


def _sums(run: Runs) -> list[dict[str, np.ndarray]]:
    """Return what nodes sent in training."""
    return [
        unpack(reply.content["arrays"])
        for message, reply in zip(run.grid.sent, run.grid.received, strict=True)
        if message.metadata.message_type == "train"
    ]


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_without_clipping_and_noise_nothing_changes(run: Runs, method: str) -> None:
    keys: dict[str, Value] = {"method": method, "privacy.clip-norm": math.inf}
    private = read_checkpoint(run("private", **keys)).arrays
    plain = read_checkpoint(run("plain", **keys, **{"privacy.unit": "none"})).arrays
    for name, array in plain.items():
        assert np.array_equal(private[name], array)


@pytest.mark.parametrize("clipping", ["flat", "layer"])
def test_no_change_that_leaves_a_host_is_longer_than_the_clip_norm(
    run: Runs, clipping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FedAvgClient.train

    def exaggerate(client: FedAvgClient, arrays: Arrays) -> Answer:
        answer = honest(client, arrays)
        if client.client_id in "0123":
            for array in answer.arrays.values():
                array += 1e6
        return answer

    monkeypatch.setattr(FedAvgClient, "train", phase(exaggerate))
    keys: dict[str, Value] = {"privacy.noise-multiplier": 1e-6, "privacy.clip-norm": 0.3, "privacy.clipping": clipping}
    run("run", nodes=8, participation=1.0, rounds=1, **keys)
    norms = [math.sqrt(sum(float(np.square(a, dtype=np.float64).sum()) for a in s.values())) for s in _sums(run)]
    assert len(norms) == 8
    assert max(norms) <= 0.3 * (1 + 1e-6)
    assert sum(norm > 0.29 for norm in norms) >= 4
    for sums in _sums(run):
        if clipping == "layer":
            assert all(np.linalg.norm(a) <= 0.3 / math.sqrt(len(sums)) * (1 + 1e-6) for a in sums.values())


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_released_mean_carries_the_stated_noise(run: Runs, nodes: int) -> None:
    """z·C/m in every entry, however clients are packed onto nodes; what nodes send has none."""
    keys: dict[str, Value] = {"privacy.noise-multiplier": 2.0, "privacy.clip-norm": 0.5}
    path = run("run", nodes=nodes, rounds=1, **keys, **NO_CHANGE)
    assert _within(_released(run, path), 2.0 * 0.5 / 4)
    assert all(np.abs(a).max() < 1e-3 for sums in _sums(run) for a in sums.values())


def _released(run: Runs, path: Path) -> np.ndarray:
    """Return all entries of a run's one released mean."""
    sent = next(message for message in run.grid.sent if message.metadata.message_type == "train")
    start = unpack(sent.content["arrays"])
    return np.concatenate([(a - start[n]).ravel() for n, a in read_checkpoint(path).arrays.items()]).astype(np.float64)


def _within(values: np.ndarray, deviation: float) -> bool:
    """Return whether normal values of this deviation would look so, but for one time in 500,000."""
    low, high = chi2.ppf([1e-6, 1 - 1e-6], values.size)
    return bool(low < np.square(values / deviation).sum() < high)


@pytest.mark.parametrize("nodes", [1, 4])
def test_devices_add_shares_of_the_noise(run: Runs, nodes: int) -> None:
    """Of variance (z·C)²/m each, so that the sum of m has (z·C)², however they are packed onto nodes."""
    keys: dict[str, Value] = {
        "privacy.noise-multiplier": 2.0, "privacy.clip-norm": 0.5, "privacy.noise-at": "device",
    }  # fmt: skip
    path = run("run", nodes=nodes, rounds=1, **keys, **NO_CHANGE)
    assert _within(_released(run, path), 2.0 * 0.5 / 4)
    for sums in _sums(run):
        assert _within(np.concatenate([a.ravel() for a in sums.values()]).astype(np.float64), 1.0 / np.sqrt(nodes))
    assert json.loads((path / "privacy.json").read_text())["releases"] == [[2.0, 1.0, 1]]


def test_noise_of_devices_that_fail_does_not_count(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FedAvgClient.train

    def fail(client: FedAvgClient, arrays: Arrays) -> Answer:
        if client.client_id in "01":
            raise OSError("no space left on device")
        return honest(client, arrays)

    monkeypatch.setattr(FedAvgClient, "train", phase(fail))
    path = run("run", rounds=1, participation=1.0, **{"privacy.noise-multiplier": 2.0, "privacy.noise-at": "device"})
    ((z, rate, times),) = json.loads((path / "privacy.json").read_text())["releases"]
    assert (z, rate, times) == (pytest.approx(2 * math.sqrt(6 / 8)), 1, 1)


def _changing_by(norms: Sequence[float]) -> Any:
    """Return a training in which client i changes the first entry of every model by norms[i] alone."""

    def train(client: FedAvgClient, arrays: Arrays) -> Answer:
        first, *_ = answered = {name: array.copy() for name, array in arrays.items()}
        answered[first].flat[0] += norms[int(client.client_id)]
        return Answer(answered, len(client.data.train), {"loss": 0.0})

    return phase(train)


@pytest.mark.parametrize("noise_at", ["server", "device"])
def test_the_bound_follows_the_median_of_norms(run: Runs, noise_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C ← C·exp(−η_C (b̄ − γ)), b̄ the share of changes within C; all but without noise on the count."""
    norms = np.array([1.0, 1.2, 1.5, 1.9, 2.6, 3.3, 4.1, 5.0])
    monkeypatch.setattr(FedAvgClient, "train", _changing_by(norms.tolist()))
    monkeypatch.setattr("florilegium.strategies.layers.client_privacy.COUNT_NOISE", 1e-7)
    path = run("run", rounds=50, participation=1.0, **{
        "privacy.noise-multiplier": 1e-9, "privacy.clip-quantile": 0.5, "privacy.clip-norm": 0.4,
        "privacy.noise-at": noise_at, "evaluate-every": 0,
    })  # fmt: skip
    bound = 0.4
    for _ in range(50):
        bound *= math.exp(-0.2 * (np.mean(norms <= bound) - 0.5))
    assert 1.9 < bound < 2.6
    assert json.loads((path / "summary.json").read_text())["privacy"]["clip_norm"] == pytest.approx(bound, rel=1e-4)


def test_flowers_bound_moves_the_other_way(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all updates longer than C, C grows by exp(0.1), as in the paper; Flower counts the clipped ones instead."""
    monkeypatch.setattr(FedAvgClient, "train", _changing_by([5.0] * 8))
    monkeypatch.setattr("florilegium.strategies.layers.client_privacy.COUNT_NOISE", 1e-7)
    path = run("run", rounds=1, participation=1.0, **{
        "privacy.noise-multiplier": 1e-9, "privacy.clip-quantile": 0.5, "privacy.clip-norm": 1.0,
    })  # fmt: skip
    assert _summary(path)["clip_norm"] == pytest.approx(math.exp(0.1), rel=1e-4)
    flower = DifferentialPrivacyServerSideAdaptiveClipping(FlowerFedAvg(), 0.0, 8, initial_clipping_norm=1.0)
    flower.current_arrays = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    about = Metadata(1, "", 0, 1, "", "", 0.0, 60.0, "train")
    replies = []
    for _ in range(8):
        arrays = ArrayRecord({"w": Array(np.full(4, 2.5, np.float32))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        replies.append(make_message(metadata=about, content=content))
    flower.aggregate_train(1, replies)
    assert flower.clipping_norm == pytest.approx(math.exp(-0.1), rel=1e-4)


def test_adapting_the_bound_costs_noise_and_no_budget(run: Runs) -> None:
    """The sum's noise grows to z_Δ·C, so that sum and count, of deviation m/20, are one release of multiplier z."""
    keys: dict[str, Value] = {
        "privacy.noise-multiplier": 0.7, "privacy.clip-norm": 0.5, "participation": 1.0, "rounds": 1
    }  # fmt: skip
    adaptive = run("adaptive", **keys, **NO_CHANGE, **{"privacy.clip-quantile": 0.5})
    assert _within(_released(run, adaptive), 0.5 / math.sqrt(0.7**-2 - (2 * 8 / 20) ** -2) / 8)
    fixed = run("fixed", **keys, **NO_CHANGE)
    assert _summary(adaptive)["epsilon"] == _summary(fixed)["epsilon"]


def test_an_adapted_bound_survives_resuming(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvgClient, "train", _changing_by([5.0] * 8))
    monkeypatch.setattr("florilegium.strategies.layers.client_privacy.COUNT_NOISE", 1e-7)
    keys: dict[str, Value] = {"privacy.noise-multiplier": 1e-9, "privacy.clip-quantile": 0.5, "participation": 1.0}
    whole, broken = run.whole_and_broken(3, **keys)
    assert _summary(whole)["clip_norm"] == pytest.approx(_summary(broken)["clip_norm"], rel=1e-4)
    assert _summary(whole)["clip_norm"] == pytest.approx(math.exp(0.1 * 3), rel=1e-4)


def _alone(folder: Path, **keys: Value) -> ClientPrivacy:
    """Return the protection of a run without the run."""
    return ClientPrivacy(settings(**{**KEYS, **keys}), RunFolder(folder, {}, ""))


@pytest.mark.parametrize("contributors", [0, 1, 7])
def test_sums_are_divided_by_the_expected_number_of_clients(tmp_path: Path, contributors: int) -> None:
    """The true number is a secret: with it, everybody's presence would show in the mean."""
    clients = [str(i) for i in range(contributors)]
    sums = {"w": np.full(3, 4.0)} if clients else {}
    outcome = Outcome(clients, sums, {"weight": np.ones(contributors)} if clients else {})
    protection = _alone(tmp_path, **{"privacy.noise-multiplier": 1.0})
    released = protection.protect(outcome, 4, 8, {"w": np.zeros(3)}, "train", 1, clients)
    assert released.weight == 4
    assert (released.arrays["w"] != (4.0 if clients else 0.0)).all()  # with noise, also where nobody takes part


def test_the_count_within_the_bound_is_noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share b̄ has deviation 1/20, so that ln C moves by 0.2/20 where half of the changes are within C."""
    monkeypatch.setattr("florilegium.privacy.ledger.write_text", lambda *_, **__: None)
    protection, steps = _alone(tmp_path, **{"privacy.noise-multiplier": 0.7, "privacy.clip-quantile": 0.5}), []
    for _ in range(300):
        before, sums = protection.clip_norm, {"w": np.zeros(1), WITHIN: np.zeros(1)}
        outcome = Outcome([*"01234567"], sums, {"weight": np.ones(8)})
        protection.protect(outcome, 8, 8, {"w": np.zeros(1)}, "train", 1, outcome.clients)
        steps.append(math.log(protection.clip_norm / before))
    assert _within(np.array(steps), 0.2 / 20)


def test_a_lost_account_is_in_the_checkpoint(run: Runs) -> None:
    """Without it a resumed run would claim the cost of its last rounds alone."""
    keys: dict[str, Value] = {"privacy.noise-multiplier": 3.0, "evaluate-every": 0}
    (run("lost", rounds=2, **keys) / "privacy.json").unlink()
    found = _summary(run("lost", resume="lost", rounds=3, **keys))
    assert found["releases"] == 3
    assert found["epsilon"] == pytest.approx(
        from_gaussian_mechanism(3 / math.sqrt(3)).get_epsilon_for_delta(1e-5), rel=1e-3
    )


def test_the_cost_is_what_other_accountants_say(run: Runs) -> None:
    path = run("fixed", **{"privacy.noise-multiplier": 3.0})
    by_hand = from_gaussian_mechanism(3.0).self_compose(3).get_epsilon_for_delta(1e-5)
    assert _summary(path)["epsilon"] == pytest.approx(by_hand, rel=1e-3)  # nothing is amplified
    path = run("poisson", **{"privacy.noise-multiplier": 1.5, "privacy.sampling": "poisson"})
    accountant = PRVAccountant()
    accountant.history = [(1.5, 0.5, 3)]
    assert _summary(path)["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), abs=0.02)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_budget_is_met_and_not_exceeded(run: Runs, sampling: str) -> None:
    found = _summary(run("run", **{"privacy.epsilon": 4.0, "privacy.sampling": sampling}))
    assert found["releases"] == 3
    assert 3.98 < found["epsilon"] <= 4.0


@pytest.mark.long
def test_the_last_round_with_all_clients_is_counted_as_such(run: Runs) -> None:
    keys: dict[str, Value] = {"final-participation": 1.0, "privacy.sampling": "poisson"}
    path = run("run", **keys, **{"privacy.epsilon": 4.0})
    rows = json.loads((path / "privacy.json").read_text())["releases"]
    assert [(rate, times) for _, rate, times in rows] == [(0.5, 2), (1.0, 1)]
    assert 3.98 < _summary(path)["epsilon"] <= 4.0


def test_a_resumed_run_has_cost_the_same(run: Runs) -> None:
    whole, broken = run.whole_and_broken(3, **{"privacy.epsilon": 4.0})
    assert _summary(whole) == _summary(broken)


def test_rounds_that_are_repeated_cost(run: Runs) -> None:
    """A run broken off after a round that no checkpoint has repeats it: its noise has been seen all the same."""
    keys: dict[str, Value] = {"evaluate-every": 0, "rounds": 4}
    free = run("free", **{"rounds": 1, "evaluate-every": 1, "privacy.noise-multiplier": 3.0})

    def stop(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("free", resume=free.name, intercept=stop, **keys, **{"privacy.noise-multiplier": 3.0})
    found = _summary(run("free", resume=free.name, **keys, **{"privacy.noise-multiplier": 3.0}))
    assert found["releases"] == 1 + 1 + 3  # round 2 twice
    assert found["epsilon"] > _summary(run("four", **keys, **{"privacy.noise-multiplier": 3.0}))["epsilon"]


def test_a_resumed_run_keeps_its_budget(run: Runs) -> None:
    run("run", rounds=2, **{"privacy.epsilon": 4.0})
    with pytest.raises(ConfigurationError, match=r"privacy\.epsilon: 4 does not suffice for round 3"):
        run("run", resume="run", rounds=3, **{"privacy.epsilon": 4.0})


def test_a_spent_budget_ends_a_run(run: Runs) -> None:
    def stop(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 4:
            raise KeyboardInterrupt

    keys: dict[str, Value] = {"privacy.epsilon": 4.0, "rounds": 6, "evaluate-every": 2}
    with pytest.raises(KeyboardInterrupt):
        run("run", intercept=stop, **keys)  # round 3 is lost
    path = run("run", resume="run", **keys)
    found = _summary(path)
    assert (found["releases"], read_checkpoint(path).round) == (6, 5)
    assert found["epsilon"] <= 4.0


def test_cohorts_by_chance_differ_from_run_to_run_and_may_be_empty(run: Runs) -> None:
    keys: dict[str, Value] = {
        "privacy.sampling": "poisson", "privacy.noise-multiplier": 1.0, "participation": 0.125, "rounds": 30,
        "evaluate-every": 0, "server-learning-rate": 0.01,  # steps along noise, which now and then diverge
    }  # fmt: skip
    sizes = []
    for name in "ab":
        run(name, nodes=1, **keys)
        asked = {
            int(m.content["config"]["round"]): list(m.content["config"]["clients"])
            for m in run.grid.sent
            if m.metadata.message_type == "train"
        }
        sizes.append([len(asked.get(number, [])) for number in range(1, 31)])
    assert sizes[0] != sizes[1]
    assert 0 in sizes[0] + sizes[1]  # with probability 1 − (1 − (7/8)⁸)⁶⁰
    assert 0.6 < np.mean(sizes) < 1.5


def test_noise_is_not_that_of_the_seed(run: Runs) -> None:
    paths = [run(name, rounds=1, **{"privacy.noise-multiplier": 1.0}) for name in "ab"]
    first, second = (read_checkpoint(path).arrays for path in paths)
    assert not any(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy.noise-multiplier": 1.0, "weighting": "examples"}, "weighting: .* set it to 'uniform'"),
        ({}, "needs privacy.epsilon or privacy.noise-multiplier"),
        ({"privacy.epsilon": -1.0}, "privacy.epsilon: .*greater than or equal to 0"),
        ({"privacy.delta": 1.0}, "privacy.delta: .*less than or equal to 0.5"),
        ({"privacy.clip-norm": 0.0}, "privacy.clip-norm: .*greater than 0"),
        ({"privacy.epsilon": 1.0, "privacy.noise-multiplier": 1.0}, "privacy: give either epsilon"),
        ({"privacy.unit": "none", "privacy.epsilon": 1.0}, "privacy: .*set privacy.unit"),
        ({"privacy.epsilon": 1.0, "privacy.clip-norm": math.inf}, "privacy: .*finite clip-norm"),
        ({"privacy.noise-multiplier": 1.0, "privacy.noise-at": "device", "privacy.sampling": "poisson"},
         "privacy: with noise-at = 'device' .* set sampling to 'fixed'"),
        ({"privacy.unit": "example", "privacy.epsilon": 1.0, "privacy.clip-quantile": 0.5}, "are for unit = 'client'"),
        ({"privacy.noise-multiplier": 1.0, "privacy.clip-quantile": 0.5, "privacy.clipping": "layer"}, "clipping at"),
        ({"privacy.noise-multiplier": 1.0, "privacy.clip-quantile": 0.5}, "clip-quantile: cohorts of 4 are too"),
        ({"privacy.noise-multiplier": 1.0, "patience": 1, "validation-fraction": 0.2}, "patience"),
        ({"privacy.noise-multiplier": 1.0, "model": "cnn-bn"}, "model: with noise, the statistics of batch norm"),
        ({"privacy.noise-multiplier": 1.0, "method": "pefll"}, "is not supported by method 'pefll'"),
        ({"privacy.noise-multiplier": 1.0, "method": "fedprox", "fedprox.adaptive": True}, "fedprox.adaptive"),
        ({"privacy.noise-multiplier": 1.0, "fleet.speed": 50.0, "fleet.availability": "diurnal"}, "fleet.availability"),
    ],
)  # fmt: skip
def test_what_is_refused(run: Runs, keys: dict[str, Value], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run("refused", **keys)


SUPPORTED = [
    "fedavg", "fedprox", "fedsr", "fedper", "fedrep", "fedbabu", "lg-fedavg", "fedbn", "ditto", "pfedfda", "per-fedavg",
    "pfedme", "knn-per", "ld-fedavg", "fedtta", "ppfe", "apfl", "fedala", "fedrod", "fedcp", "gpfl", "feddyn", "moon",
    "fednova", "fedgen", "hyperfedzero", "fedit", "ffa-lora", "fedsa-lora", "prior-shift", "ditto-prior",
]  # fmt: skip
OWN: dict[str, dict[str, Value]] = {
    "fedbn": {"model": "cnn-bn"}, "ld-fedavg": {"ld-fedavg.dimensions": 50},
    "fednova": {"fednova.effective-steps": 2.0},
    "ppfe": {"ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "1,1", "ppfe.ranks": ""},
}  # fmt: skip


@pytest.mark.parametrize("method", fitting(TASK))
def test_methods_are_private_or_say_why_not(run: Runs, method: str) -> None:
    """Private: the server learns from sums of changes alone."""
    keys: dict[str, Value] = {
        "method": method, "rounds": 2, "evaluate-every": 0, "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 0.01,
        **OWN.get(method, {}), **adapting(method, "fc1.1"),
    }  # fmt: skip
    if method not in SUPPORTED:
        with pytest.raises(ConfigurationError, match=f"privacy.unit: 'client' is not supported by method '{method}'"):
            run("run", **keys)
        return
    found = _summary(run("run", **keys))
    assert found["releases"] == 2
    for message in run.grid.sent:
        if message.metadata.message_type == "train":
            config = message.content["config"]
            assert config["reduce"] == "delta" or (method, config["phase"]) == (
                "ppfe",
                "finish",
            )  # where arrays are none
