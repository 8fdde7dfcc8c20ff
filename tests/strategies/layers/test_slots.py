"""Client-level privacy by slots: who takes part, what it costs, and what noise a model is left with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.wire import Request
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.privacy.accounting import Release, total
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.slots import Slots
from tests.runs import Runs
from tests.strategies.layers.test_client_privacy import KEYS, NO_CHANGE, _summary, _within
from tests.support import mostly_long

CLIENTS = 24
SLOTS: dict[str, Value] = {
    **KEYS, "num-clients": CLIENTS, "participation": 0.25, "rounds": 4, "evaluate-every": 0, "min-success": 0.01,
    "privacy.sampling": "slots", "privacy.noise-multiplier": 2.0, "privacy.clip-norm": 0.5,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, SLOTS)


def _epsilon(squared: float, z: float = 2.0) -> float:
    return total([Release("gaussian", z / squared**0.5)], 1e-5)


def _noise(path: Path) -> np.ndarray:
    """Return what has been added to the initial model."""
    first = get_arrays(build("mlp", (1, 8, 8), 10, 1))
    return np.concatenate([(a - first[n]).ravel() for n, a in read_checkpoint(path).arrays.items()]).astype(np.float64)


def test_each_client_takes_part_once_in_e_rounds(run: Runs) -> None:
    run("run", rounds=8)
    asked: list[set[str]] = [set() for _ in range(9)]
    for message in run.grid.sent:
        if message.metadata.message_type == "train":
            request = Request.unpack(message.content, trains=True, run="run")
            asked[request.work.round] |= {*request.clients}
    assert all(asked[number] == asked[number + 4] for number in range(1, 5))
    assert sum(len(asked[number]) for number in range(1, 5)) == CLIENTS
    assert set.union(*asked[1:5]) == {str(client) for client in range(CLIENTS)}


@pytest.mark.parametrize(
    ("mechanism", "rounds", "squared", "left"),
    [
        ("gaussian", 4, 1, 4),  # independent noise, of every round
        pytest.param("gaussian", 5, 2, 5, marks=pytest.mark.long),
        pytest.param("tree", 4, 3, 1, marks=pytest.mark.long),  # levels of rounds 1, 2, 4; the root alone
        ("tree", 6, 5, 2),  # and those of the second tree's rounds 1 and 2; two roots
        ("matrix", 4, 1 + 0.5**2 + 0.375**2 + 0.3125**2, 1 + 0.5**2 + 0.375**2 + 0.3125**2),
    ],
)
def test_cost_and_noise(run: Runs, mechanism: str, rounds: int, squared: float, left: float) -> None:
    """The model gets z·C ÷ (clients of a slot) in each round; the squares that are left of it are those given."""
    path = run("run", rounds=rounds, **{"privacy.mechanism": mechanism}, **NO_CHANGE)
    told = _summary(path)
    assert told["epsilon"] == pytest.approx(_epsilon(squared), rel=1e-6)
    assert (told["mechanism"], told["slots"]) == (mechanism, 4)
    assert _within(_noise(path), 2.0 * 0.5 / (CLIENTS / 4) * left**0.5)


@pytest.mark.parametrize("mechanism", mostly_long(["gaussian", "tree", "matrix"], "matrix"))
def test_a_budget_lasts_for_all_rounds(run: Runs, mechanism: str) -> None:
    keys: dict[str, Value] = {"privacy.noise-multiplier": 0.0, "privacy.epsilon": 3.0, "privacy.mechanism": mechanism}
    path = run("run", rounds=6, **keys, **NO_CHANGE)
    assert _summary(path)["epsilon"] == pytest.approx(3.0, rel=2e-3)
    assert _summary(path)["epsilon"] <= 3.0
    assert json.loads((path / "summary.json").read_text())["rounds"] == 6


def test_a_resumed_run_begins_anew_and_pays_for_it(run: Runs) -> None:
    keys: dict[str, Value] = {"privacy.mechanism": "tree"}
    run("run", rounds=2, **keys, **NO_CHANGE)
    path = run("run", rounds=4, resume="run", **keys, **NO_CHANGE)
    assert _summary(path)["epsilon"] == pytest.approx(_epsilon(2 + 2), rel=1e-6)
    assert _within(_noise(path), 2.0 * 0.5 / (CLIENTS / 4) * 2**0.5)


def test_phases_have_noise_and_charges_of_their_own() -> None:
    slots = Slots("tree", 1, 9, 5)
    first = slots.noise("a", 1, 1.0, ["x"], {"w": (4,)})["w"]
    other = slots.noise("b", 1, 1.0, ["x"], {"w": (4,)})["w"]
    assert not np.allclose(first, other)
    assert slots.next_charge(2) == slots.charge("a", 2) + slots.charge("b", 2) == 2.0


def test_rounds_that_a_phase_skips_count_too() -> None:
    slots = Slots("matrix", 10, 10, 5)
    slots.noise("a", 1, 1.0, [], {})
    assert slots.charge("a", 4) == pytest.approx(0.5**2 + 0.375**2 + 0.3125**2)


def test_what_the_account_does_not_cover_ends_the_run() -> None:
    slots = Slots("matrix", 3, 9, 5)
    clients = [str(number) for number in range(30)]
    slots.noise("a", 1, 1.0, slots.members(clients, 1), {})
    with pytest.raises(RunError, match="asks clients of other slots, or twice in round 1"):
        slots.noise("a", 1, 1.0, [], {})
    with pytest.raises(RunError, match="asks clients of other slots"):
        slots.noise("a", 2, 1.0, slots.members(clients, 1), {})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"privacy.mechanism": "tree", "privacy.sampling": "poisson"}, "set sampling to 'slots'"),
        ({"privacy.mechanism": "matrix", "privacy.clip-quantile": 0.5}, "set clip-quantile to 0"),
        ({"privacy.noise-at": "device"}, "set sampling to 'fixed'"),
        ({"final-participation": 1.0}, "each client has its rounds; set it to 0"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Runs, keys: dict[str, Value], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run("run", **keys)
