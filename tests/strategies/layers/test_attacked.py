"""Runs with attackers: who they are, what they do to a model, and what is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.attacks.registry import ATTACKS
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.folder.results import read_clients, read_summary
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.liars import Devices
from tests.runs import Runs
from tests.strategies.layers.test_robust import KEYS
from tests.support import assert_rounded

ALL = {**KEYS, "partitioner": "iid", "num-clients": 8, "attackers": 2, "seed": 3}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, ALL)


def _model(path: Path) -> np.ndarray:
    return np.concatenate([array.ravel() for array in read_checkpoint(path).arrays.values()])


def _first_update(run: Runs, path: Path) -> np.ndarray:
    from florilegium.clients.core.wire import unpack

    sent = next(message for message in run.grid.sent if message.metadata.message_type == "train")
    return _model(path) - np.concatenate([a.ravel() for a in unpack(sent.content["arrays"]).values()])


def test_turned_signs_are_what_the_mean_becomes(run: Runs) -> None:
    """Σ over honest minus 2·Σ over attackers, of eight; weights are equal. Two nodes or one are the same."""
    path = run("attacked", attack="sign-flip", **{"sign-flip.scale": 2.0})
    found = _first_update(run, path)
    attackers = read_summary(path)["attack"]["attackers"]
    assert len(attackers) == 2
    names = ",".join(attackers)
    same = run("named", nodes=1, attack="sign-flip", attackers=names, **{"sign-flip.scale": 2.0})
    assert_rounded(_model(same), _model(path))
    plain = _first_update(run, run("plain"))
    once = _first_update(run, run("once", attack="sign-flip"))
    theirs = once - found
    assert_rounded(plain - once, 2 * theirs)


def test_attackers_are_not_evaluated(run: Runs) -> None:
    path = run("attacked", attack="sign-flip", attackers="1,6")
    assert {line["client"] for line in read_clients(path)} == {*"0", *"234", *"57"}
    assert read_summary(path)["attack"] == {"name": "sign-flip", "attackers": ["1", "6"]}


@pytest.mark.parametrize("attack", [name for name in ATTACKS.own if name != "none"])
@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_every_attack_in_a_run_that_is_resumed(run: Runs, attack: str, aggregation: str) -> None:
    keys: dict[str, Value] = {"attack": attack, "aggregation": aggregation, "rounds": 3, "evaluate-every": 1}
    whole, broken = run.whole_and_broken(3, **keys)
    np.testing.assert_array_equal(_model(whole), _model(broken))
    assert np.abs(_model(whole) - _model(run("honest", aggregation=aggregation, rounds=3, attackers=2))).max() > 0


def test_a_backdoor_is_learned_and_its_success_measured(run: Runs) -> None:
    keys: dict[str, Value] = {"model": "mlp", "rounds": 4, "learning-rate": 0.1, "batch-size": 10, "local-epochs": 2}
    path = run("attacked", attack="backdoor", **keys, **{"backdoor.boost": 0.0})
    final = read_summary(path)["final"]["seen"]
    assert final["attack_success"] > 0.8
    assert final["accuracy"] > 0.5
    bounded = run("bounded", attack="backdoor", aggregation="norm-bound", **keys, **{"backdoor.boost": 0.0})
    assert read_summary(bounded)["final"]["seen"]["attack_success"] < final["attack_success"]


def test_who_was_excluded_beside_the_truth(run: Runs) -> None:
    path = run("attacked", attack="sign-flip", aggregation="multi-krum", rounds=2, **{"sign-flip.scale": 5.0})
    found = json.loads((path / "summary.json").read_text())["robust"]
    assert found["recall"] == 1.0  # n − f − 2 = 4 of eight are kept, without any attacker
    assert found["precision"] == 0.5


def test_attackers_stay_below_the_bound_that_they_know(run: Runs) -> None:
    path = run("attacked", attack="sign-flip", **{"sign-flip.scale": 1e6, "max-update-norm": 2.0})
    assert not (path / "failures.jsonl").exists()
    assert np.linalg.norm(_first_update(run, path)) <= 2.0


def test_buffered_rounds_have_attackers(run: Runs) -> None:
    keys: dict[str, Value] = {"mode": "buffered", "buffer.size": 3, "fleet.speed": 10.0, "rounds": 3}
    honest, attacked = run("honest", **keys), run("attacked", attack="inner-product", attackers=4, **keys)
    assert np.linalg.norm(_model(honest) - _model(attacked)) > 1e-3
    poisoned = run("poisoned", attack="label-flip", attackers=4, **keys)
    assert np.linalg.norm(_model(honest) - _model(poisoned)) > 1e-3


def test_with_private_clients_attackers_poison_data_alone(run: Runs) -> None:
    private: dict[str, Value] = {"privacy.unit": "client", "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 1.0}
    run("poisoned", attack="label-flip", **private)
    with pytest.raises(ConfigurationError, match=r"'inner-product' with privacy.unit = 'client': forged updates pass"):
        run("refused", attack="inner-product", **private)


@pytest.mark.long
@pytest.mark.parametrize("attack", ["label-flip", "sign-flip"])
def test_accounts_of_private_examples_are_those_of_a_run_without_attackers(run: Runs, attack: str) -> None:
    """Each account is a client's own: what others do with data or updates is no release of its examples."""
    keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 1.0, "rounds": 2}
    honest = {line["client"]: line["epsilon"] for line in read_clients(run("honest", **keys))}
    attacked = {line["client"]: line["epsilon"] for line in read_clients(run("attacked", attack=attack, **keys))}
    assert len(attacked) == 6
    assert all(float(cost) > 0 and cost == honest[client] for client, cost in attacked.items())


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"attackers": 9}, "attackers: 9 were asked for, and 8 clients may train"),
        ({"attackers": 8}, "attackers: all clients that may train would attack"),
        ({"attackers": 0}, "attack: 'sign-flip' has nobody to carry it out; set attackers"),
        ({"attackers": 0.01}, "attackers: a share of 0.01 of 8 clients is nobody"),
        ({"attackers": 1.5}, "1.5 is not a share of clients below 1"),
        ({"attackers": -1}, "-1 is not a number of clients"),
        ({"attackers": "3,x"}, "attackers: no client that may train is called 'x'"),
        ({"attackers": "3,,4"}, "'3,,4' is not a list of clients"),
        ({"attack": "mimick"}, "attack: 'mimick' is not an attack; did you mean 'mimic'"),
        ({"attack": "min-max", "attack-knows": "own"}, "attack-knows: 'min-max' works with 'attackers' or more"),
        ({"secure-aggregation": True, "max-update-norm": 10.0}, "replaces single updates, and does not go with secure"),
        ({"attack": "label-flip", "dataset": "synthetic-linear"}, "'label-flip' changes classes"),
        (
            {"attack": "backdoor", "dataset": "shakespeare", "model": "char-lstm", "partitioner": "natural"},
            "'backdoor' changes numbers, and 'shakespeare' has texts",
        ),
        ({"buffers": "first"}, "replaces single updates, and does not go with buffers = 'first'"),
        ({"aggregation": "krum", "attackers": 3}, "'krum' with attackers = 3 needs 9 clients"),
        ({"aggregation": "bulyan", "attackers": 0.25}, "'bulyan' with attackers = 0.25 needs 11 clients"),
        ({"aggregation": "krum", "tolerated": 3}, "'krum' with tolerated = 3 needs 9 clients"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(run: Runs, keys: dict[str, Value], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        run("refused", **{"attack": "sign-flip", **keys})


def test_devices_do_not_attack_by_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Value] = {**KEYS, "num-clients": 3, "seed": 3}
    with pytest.raises(ConfigurationError, match="attack: 'label-flip' is for simulations; set it to 'none' on dev"):
        Devices(tmp_path, keys, monkeypatch).told("refused", attack="label-flip", attackers=1)


@pytest.mark.parametrize("method", ["local", "ifca", "fedproto"])
def test_methods_without_a_mean_of_updates_have_no_forged_ones(run: Runs, method: str) -> None:
    assert why_not(METHODS[method], "robust aggregation") or method == "local"
    with pytest.raises(ConfigurationError, match=f"attack: 'sign-flip' forges updates.*'{method}'"):
        run("refused", method=method, model="mlp", attack="sign-flip")
