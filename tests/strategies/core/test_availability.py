"""Who is asked when some are offline: simulated clients of a fleet, and real devices that have gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from florilegium.apps.assembly.parts import assemble
from florilegium.clients.fednova import normaliser
from florilegium.common.settings import Value
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.rounds import Rounds
from florilegium.strategies.exchange.clock import Clock, Job, Load
from florilegium.strategies.exchange.evaluation import MEDIAN
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.fleet import Fleet
from florilegium.strategies.exchange.roster import Member, Roster
from tests.fingerprints import cases
from tests.runs import Runs
from tests.support import config, mostly_long, settings

SOME: dict[str, Value] = {
    "fleet.speed": 50.0, "fleet.availability": "diurnal", "fleet.online": 0.4, "fleet.phase-sigma": 12.0,
    "num-clients": 20, "participation": 0.5, "min-success": 0.0, "evaluate-every": 0,
}  # fmt: skip
"""Two in five clients are online."""
ASKING = ["fedavg", "flowdup", "l2p", "ppfe", "ppfe-linear", "feddbe"]


@pytest.mark.parametrize("method", mostly_long(ASKING, "flowdup", "l2p", "ppfe"))
def test_only_clients_that_are_online_are_asked(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    keys = {**cases()[method], **SOME}
    found = settings(**keys)
    fleet = Fleet(found.fleet, found.seed)
    jobs = Clock.jobs

    def noted(self: Clock, members: Sequence[Member], path: Sequence[int], load: Load) -> list[Job]:
        devices = fleet.devices([member.id for member in members])
        asked.append((int((fleet.online_until(devices, self.now) > self.now).sum()), len(members)))
        return jobs(self, members, path, load)

    monkeypatch.setattr(Clock, "jobs", noted)
    Runs(tmp_path, keys)("some")
    assert asked
    assert all(online == all_ > 0 for online, all_ in asked)


@pytest.mark.parametrize(("method", "keys"), [("fediir", {}), ("fedgtst", {"fedgtst.diagnose": True})])
def test_both_exchanges_of_a_round_ask_the_same_cohort(method: str, keys: dict[str, Value], tmp_path: Path) -> None:
    slow = {**SOME, "fleet.speed": 0.03}  # an exchange takes an hour
    runs = Runs(tmp_path, {**cases()[method], **slow, **keys, "rounds": 1})
    runs("some", nodes=1)
    messages = [m.content["config"] for m in runs.grid.sent if m.metadata.message_type.startswith("train")]
    first, second = (cast(Any, message["clients"]) for message in messages)
    assert list(first) == list(second)


def _on_devices(sizes: Sequence[int], **keys: Value) -> Any:
    """Return a strategy whose clients are devices with so many training examples."""
    app = assemble(config(**{"model": "linear", "num-clients": len(sizes), **keys}), one_thread=True, one_process=True)
    roster = Roster(lambda: [], len(sizes), "")
    roster.deployed, roster.nodes = True, [*range(len(sizes))]
    roster.clients = {f"d{node}": Member(f"d{node}", size, 10, node=node) for node, size in enumerate(sizes)}
    strategy: Any = app.method.strategy_class()(
        Setup(app.settings, app.hyper, app.method.client_class(), roster, cast(Any, None))
    )
    strategy.arrays = strategy.server_part(app.initial)
    return strategy


def _lose(strategy: Any, nodes: Sequence[int]) -> None:
    """Let these nodes go offline."""
    left = set(strategy.federation.roster.nodes) - {*nodes}
    strategy.federation.roster.refresh(
        cast(Any, SimpleNamespace(get_node_ids=lambda: left, push_messages=list, pull_messages=list))
    )


@pytest.mark.parametrize("method", ["feddyn", "scaffold"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_shares_are_those_of_all_clients_whoever_is_offline(method: str, weighting: str) -> None:
    found = []
    for gone in ([], range(10, 20)):
        strategy = _on_devices([50] * 19 + [5000], method=method, weighting=weighting)
        _lose(strategy, gone)
        sums = {name: np.ones(array.shape) for name, array in (strategy.arrays | strategy.beside).items()}
        strategy.learn(None, strategy.arrays, Outcome(["d0", "d1"], sums, {"weight": np.ones(2)}))
        found.append(next(iter((strategy._h if method == "feddyn" else strategy.beside).values())))
    np.testing.assert_array_equal(*found)
    if method == "feddyn":  # -α/m, where the largest device counts as ten of the usual ones
        most = 20 if weighting == "uniform" else 19 * 50 + 500
        np.testing.assert_allclose(found[0], -strategy.hyper.alpha / most)


def test_fednovas_effective_steps_have_the_weights_of_the_average() -> None:
    strategy = _on_devices([50] * 19 + [5000], method="fednova")
    cohort = [*strategy.clients]
    steps = [normaliser(strategy.settings, strategy.hyper, size, 1) for size in (50, 5000)]
    sent = strategy.train_arguments(SimpleNamespace(number=1), cohort)["steps"]
    assert sent == pytest.approx((19 * 50 * steps[0] + 500 * steps[1]) / (19 * 50 + 500))


def test_a_run_goes_on_while_somebody_who_is_offline_can_still_pay() -> None:
    strategy = _on_devices([50, 50, 50], method="fedavg")
    rounds = Rounds(strategy, cast(Any, None), 3, None)
    _lose(strategy, [2])
    strategy.federation.accounts.spent |= {"d0", "d1"}
    assert not strategy.federation.can_pay()
    assert not rounds._spent_after(1, new=True)
    strategy.federation.accounts.spent |= {"d2"}
    assert rounds._spent_after(1, new=True)


def test_an_evaluation_that_reached_nobody_who_validates_counts_for_nothing() -> None:
    strategy = _on_devices([50, 50], method="fedavg", **{"patience": 2, "validation-fraction": 0.2})
    for losses, over in (([None, 2.0, None, 1.0], False), ([1.0, 2.0, None], False), ([1.0, None, 2.0, 3.0], True)):
        lines = [{"seen": {} if loss is None else {MEDIAN: loss}} for loss in losses]
        strategy.federation.run = SimpleNamespace(metrics=SimpleNamespace(evaluations=lines))
        assert strategy.finished(9) == over


def test_a_chosen_main_figure_ends_a_run() -> None:
    """Of AUROC the largest is best, of an error the smallest; without ``metrics`` the loss decides."""
    keys: dict[str, Value] = {"patience": 2, "validation-fraction": 0.2, "metrics": "auroc,accuracy"}
    strategy = _on_devices([50, 50], method="fedavg", **keys)
    for values, over in (([0.6, 0.7, 0.65], False), ([0.7, 0.6, 0.65], True), ([0.6, 0.65, 0.7], False)):
        lines = [{"seen": {"validation_auroc_median": value, MEDIAN: 9.0}} for value in values]
        strategy.federation.run = SimpleNamespace(metrics=SimpleNamespace(evaluations=lines))
        assert strategy.finished(9) == over
