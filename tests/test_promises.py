"""Privacy claims of all methods, for both units: refused where they are not stated, enforced where they are.

A claim is tested by what it means: data that differ in one unit (one example, or one client) lead to the same messages
and the same model when that unit's contribution is clipped to almost nothing. What is drawn at random is drawn alike in
both runs, and noise is too small to matter. Figures (losses, accuracies, numbers that a method only reports) are
outside of every claim (docs/privacy.md).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.apps.engines.one_process import run_here
from florilegium.apps.methods.layers import LAYERS, why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import Reply
from florilegium.clients.fedavg import FedAvgClient
from florilegium.clients.layers import examples
from florilegium.common.declarations import gap
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.partitions.clientdata import ClientData, Examples
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers import noise
from tests.fingerprints import cases, own
from tests.grid import run_app
from tests.support import claiming, config

SHORT: dict[str, Value] = {"num-clients": 3, "participation": 1.0, "rounds": 2, "local-steps": 2, "evaluate-every": 0}
UNITS: Mapping[str, dict[str, Value]] = {
    "example": {"privacy.unit": "example", "privacy.clip-norm": 1e-9, "privacy.noise-multiplier": 1e-6},
    "client": {
        "privacy.unit": "client", "privacy.clip-norm": 1e-9, "privacy.noise-multiplier": 1e-6, "weighting": "uniform",
        "privacy.sampling": "fixed",
    },
}  # fmt: skip
LAYER = {"example": "protects examples", "client": "protects clients"}


def _keys(method: str, unit: str, folder: Path, **more: Value) -> dict[str, Value]:
    rounds = {"rounds": own(method).get("rounds", SHORT["rounds"])}
    keys = {**cases()[method], **SHORT, **rounds, **claiming(method, LAYER[unit]), **UNITS[unit], **more}
    return config(**keys, **{"runs-dir": str(folder)})


def _claim(method: str, unit: str, keys: Mapping[str, Value]) -> str:
    """Return what breaks the claim of a method, "" if it claims the privacy of this unit."""
    _, hyper = parse({**keys, "privacy.unit": "none", "privacy.noise-multiplier": 0.0})
    return why_not(METHODS[method], LAYER[unit], hyper)


def _other_example(examples: Examples) -> Examples:
    """Return a client's examples with one of them replaced by an outlier of another class."""
    x, y = examples.x.clone(), examples.y.clone()
    x[0], y[0] = 1000 * torch.randn(x[0].shape, generator=torch.Generator().manual_seed(1)), (y[0] + 1) % 10
    return Examples(x, y)


def _other_client(examples: Examples) -> Examples:
    """Return another client's examples, as many."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(examples.x.shape, generator=generator).to(examples.x.dtype)
    return Examples(x, torch.randint(0, 10, examples.y.shape, generator=generator))


OTHER: Mapping[str, Callable[[Examples], Examples]] = {"example": _other_example, "client": _other_client}


class Neighbours:
    """Two runs on data that differ in one unit of client 0."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def differences(self, method: str, unit: str) -> float:
        """Return the largest difference between what leaves the clients, and what the server learns, in the two."""
        first, second = (self._run(method, unit, other) for other in (None, OTHER[unit]))
        assert first.keys() == second.keys()
        return max((float(np.abs(first[name] - second[name]).max(initial=0.0)) for name in first), default=0.0)

    def _run(self, method: str, unit: str, other: Callable[[Examples], Examples] | None) -> Arrays:
        name = "changed" if other else "plain"
        draws, data = count(1), SimulatedClients.data

        def changed(source: SimulatedClients, client: str) -> ClientData:
            own = data(source, client)
            if other is None or client != "0":
                return own
            train, test = other(own.train), own.test
            return ClientData(
                lambda: train, lambda: test, labeled=own.labeled, simulated=True, device=own.train.y.device
            )

        with self._monkeypatch.context() as patch:
            patch.setattr(secrets, "randbits", lambda bits: next(draws))
            patch.setattr(SimulatedClients, "data", changed)
            grid = run_app(_keys(method, unit, self._folder, **{"run-name": name}), nodes=3)
        found: Arrays = {}
        replies = 0
        for number, message in enumerate(grid.received):
            assert not message.has_error(), message.error
            if "outcome" in message.content:
                reply = Reply.unpack(message.content)
                assert not reply.failures
                replies += 1
                found |= {f"{number} {array}": values for array, values in reply.arrays.items()}
        assert replies, "nothing that left the clients was compared"
        checkpoint = read_checkpoint(self._folder / name)
        return found | {f"model {n}": a for n, a in checkpoint.arrays.items()} | {
            f"state {n}": a for n, a in checkpoint.state.items()
        }  # fmt: skip


@pytest.fixture
def neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Neighbours:
    """Return what compares runs on neighbouring data."""
    return Neighbours(tmp_path, monkeypatch)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("method", METHODS)
def test_every_claim_is_enforced_and_everything_else_refused(
    method: str, unit: str, neighbours: Neighbours, tmp_path: Path
) -> None:
    keys = _keys(method, unit, tmp_path, **{"run-name": "refused"})
    if not _claim(method, unit, keys):
        assert neighbours.differences(method, unit) < 1e-5
        return
    for way in (lambda: run_app(keys), lambda: run_here(keys, tmp_path / "here")):
        refused = (
            re.escape(f"'{unit}' is not supported by method '{method}'") + f"|'{unit}' needs a loss of each example"
        )
        with pytest.raises(ConfigurationError, match=refused):
            way()


def test_a_run_in_one_process_refuses_what_the_server_app_refuses(tmp_path: Path) -> None:
    keys = _keys("fediir", "example", tmp_path, **{"run-name": "here", "privacy.clip-norm": 1.0})
    with pytest.raises(ConfigurationError, match="'example' is not supported by method 'fediir'"):
        run_here(keys, tmp_path / "here")
    assert not (tmp_path / "here" / "summary.json").exists()


class Silent(FedAvgClient):
    """Writes a raw image into its answer, and says nothing of privacy."""

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Leak an example."""
        answer = super().train(arrays)
        name = next(iter(answer.arrays))
        leaked = answer.arrays[name].copy()
        image = self.data.train.x[0].flatten().numpy()[: leaked.size]
        leaked.flat[: len(image)] = image
        return Answer(answer.arrays | {name: leaked}, answer.num_examples, answer.metrics)


class Liar(Silent):
    """The same, with a claim of its own."""

    training = Training("gradients")


class SilentStrategy(FedAvg):
    """FedAvg that says nothing of privacy."""


class Listener(FedAvg):
    """Claims what its step by the clients' losses breaks."""

    messages = Messages("sum")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Move along the loss."""
        outcome: Outcome = round.ask("train", round.sample(), send=model, reduce="delta")
        return {name: (array + outcome.mean("loss")).astype(array.dtype) for name, array in model.items()}


class Collector(FedAvg):
    """Claims what its sum of whole models breaks."""

    messages = Messages("sum")
    evaluation = False

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Ask for models instead of changes."""
        outcome = round.ask("train", round.sample(), send=model, reduce="sum", evaluation=self.evaluation)
        return {name: (array / 3).astype(array.dtype) for name, array in outcome.arrays.items()}


class SlyCollector(Collector):
    """The same, by the messages of an evaluation."""

    messages = Messages("sum")
    evaluation = True


class SlyListener(FedAvg):
    """Asks for updates by the messages of an evaluation, which must be as noisy as others."""

    messages = Messages("sum")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Take the mean update."""
        outcome = round.ask("train", round.sample(), send=model, reduce="delta", evaluation=True)
        return {name: (w + outcome.arrays[name] / outcome.weight).astype(w.dtype) for name, w in model.items()}


def _enter(monkeypatch: pytest.MonkeyPatch, **halves: Any) -> None:
    monkeypatch.setitem(METHODS.own, "fedavg", replace(METHODS["fedavg"], **halves))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "halves"),
    [("example", {"client": f"{__name__}:Silent"}), ("client", {"strategy": f"{__name__}:SilentStrategy"})],
)
def test_declarations_are_not_inherited(
    unit: str, halves: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enter(monkeypatch, **halves)
    with pytest.raises(ConfigurationError, match="does not state"):
        run_here(_keys("fedavg", unit, tmp_path, **{"run-name": "run"}), tmp_path / "run")


@pytest.mark.parametrize(
    ("unit", "halves"),
    [("example", {"client": f"{__name__}:Liar"}), ("client", {"strategy": f"{__name__}:Listener"})],
)
def test_the_comparison_finds_a_false_claim(
    unit: str, halves: dict[str, str], neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enter(monkeypatch, **halves)
    assert neighbours.differences("fedavg", unit) > 1e-3


def test_updates_asked_for_in_an_evaluation_cost_as_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = []
    for strategy in ("florilegium.strategies.fedavg:FedAvg", f"{__name__}:SlyListener"):
        _enter(monkeypatch, strategy=strategy)
        keys = _keys("fedavg", "client", tmp_path, **{"run-name": f"run{len(spent)}", "privacy.noise-multiplier": 5.0})
        run = run_here(keys, tmp_path / str(keys["run-name"]))
        spent.append(json.loads((run / "summary.json").read_text())["privacy"])
    assert spent[0] == spent[1]
    assert spent[0]["releases"] == SHORT["rounds"]


@pytest.mark.parametrize("layer", LAYERS)
def test_classes_that_state_nothing_are_refused_by_every_layer(layer: str) -> None:
    method = replace(METHODS["fedavg"], client=Silent, strategy=SilentStrategy)
    assert "does not state" in why_not(method, layer)
    assert not why_not(METHODS["fedavg"], layer)


def test_a_declaration_is_of_its_type() -> None:
    class Forgetful:
        @staticmethod
        def messages(hyper: Any) -> None: ...

        training = "gradients"

    with pytest.raises(TypeError, match=r"Forgetful\.messages must be of type Messages"):
        gap(Forgetful, Messages, noise.gap, None)
    with pytest.raises(TypeError, match=r"Forgetful\.training must be of type Training"):
        gap(Forgetful, Training, examples.gap, None)


@pytest.mark.parametrize("collector", ["Collector", "SlyCollector"])
def test_a_client_returns_no_sums_that_nothing_bounds(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enter(monkeypatch, strategy=f"{__name__}:{collector}")
    with pytest.raises(RunError, match=r"returns arrays that privacy\.unit = 'client' cannot bound"):
        run_here(_keys("fedavg", "client", tmp_path, **{"run-name": "run"}), tmp_path / "run")
