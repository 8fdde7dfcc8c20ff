"""Phases: their signatures are the contract of a request, checked on both sides."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from florilegium.apps.assembly.parts import assemble, open_folder
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import RESERVED, ContractError, contracts_of, phase
from florilegium.clients.core.wire import Request, Work, pack
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.errors import RunError
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.core.round import Round
from tests.grid import InProcessGrid
from tests.support import config, make_client, perform, settings


class ToyClient(BaseClient):
    """A client with one phase that has arguments of every kind."""

    @phase
    def measure(
        self, arrays: Arrays, *, share: float, count: int = 1, names: list[str] | None = None, deep: bool = False
    ) -> Answer:
        """Return nothing."""
        return Answer({}, count, {"share": share})


CONTRACT = contracts_of(ToyClient)["measure"]


class TestContract:
    def test_arguments_are_read_in_the_types_of_the_signature(self) -> None:
        assert CONTRACT.read({"share": 1, "names": ("a", "b"), "deep": None}) == {"share": 1.0, "names": ["a", "b"]}
        assert type(CONTRACT.read({"share": 1})["share"]) is float

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"share": 0.5, "cuont": 2}, "takes no argument 'cuont'"),
            ({"count": 2}, "needs the argument 'share'"),
            ({"share": "much"}, "'share' must be of type float"),
            ({"share": float("nan")}, "'share' must be of type float"),
            ({"share": True}, "'share' must be of type float"),
            ({"share": 0.5, "count": 1.5}, "'count' must be of type int"),
            ({"share": 0.5, "count": True}, "'count' must be of type int"),
            ({"share": 0.5, "names": "ab"}, r"'names' must be of type list\[str\]"),
            ({"share": 0.5, "names": [1]}, r"'names' must be of type list\[str\]"),
            ({"share": 0.5, "deep": 1}, "'deep' must be of type bool"),
        ],
    )
    def test_what_does_not_fit_is_named(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ContractError, match=said):
            CONTRACT.read(given)

    @pytest.mark.parametrize("argument", ["share: float", "*, share: complex", "*, share", "*, round: int", "**share"])
    def test_a_signature_that_cannot_be_sent_is_refused(self, argument: str) -> None:
        names: dict[str, Any] = {}
        exec(f"def measure(self, arrays, {argument}): ...", names)
        with pytest.raises(TypeError, match="argument"):
            phase(names["measure"])

    def test_none_is_a_default_of_optional_arguments_alone(self) -> None:
        def measure(self: Any, arrays: Arrays, *, share: float | None = 0.5) -> None: ...

        with pytest.raises(TypeError, match="None"):
            phase(measure)


def test_overriding_a_phase_without_the_mark_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Careless.train overrides a phase; mark it with @phase"):

        class Careless(FedAvgClient):
            def train(self, arrays: Arrays) -> Answer:
                return Answer({}, 0)


def test_overriding_a_phase_by_another_base_is_an_error_too() -> None:
    class Mixin:
        def train(self, arrays: Arrays) -> Answer:
            return Answer({}, 0)

    with pytest.raises(TypeError, match=r"Mixin.train overrides a phase; mark it with @phase"):

        class Mixed(Mixin, FedAvgClient):  # type: ignore[misc]
            pass


def test_a_client_checks_what_arrives() -> None:
    network = build("mlp", (1, 8, 8), 10, 1)
    data = simulated(*federate(settings(**{"num-clients": 3})), 0)
    client = make_client(data.train, network, method="fedprox")
    with pytest.raises(RunError, match="method 'fedprox': phase 'train' takes no argument 'nu'"):
        perform(client, "train", get_arrays(network), nu=1.0)
    with pytest.raises(RunError, match="'mu' must be of type float"):
        perform(client, "train", get_arrays(network), mu="1")
    with pytest.raises(RunError, match="has no phase 'descend'"):
        perform(client, "descend", get_arrays(network))


def test_no_argument_can_hide_an_option_of_ask() -> None:
    options = set(inspect.signature(Round.ask).parameters) - {"self", "arguments"}
    assert options <= RESERVED


class TestRequest:
    @pytest.mark.parametrize(
        ("field", "value"),
        [("round", 1.0), ("round", True), ("run", 3), ("lineage", "1"), ("keep", 1), ("trainings", "2"), ("phase", 1),
         ("round", -1), ("lineage", [-1]), ("lineage", ["1"]),
         ("clients", [1]), ("tests", float("inf")), ("noise", -0.1),
         ("noise", "0.1")],
    )  # fmt: skip
    def test_a_field_of_another_type_is_refused(self, field: str, value: Any) -> None:
        content = Request(["a"], "train", "delta", Work(1)).pack(pack({}))
        fields = {**content["config"], field: value}  # type: ignore[dict-item]
        with pytest.raises(RunError, match=f"field '{field}' must be of type"):
            Request.unpack(RecordDict({"config": ConfigRecord(fields)}), trains=True, run="r")

    def test_a_request_survives_the_wire(self) -> None:
        work = Work(3, "run", "ab", [1, 2], 2, True, 4.5, 2.0)
        sent = Request(["a", "b"], "train", "delta", work, {"mu": 0.5}, {"noise": 0.25})
        received = Request.unpack(sent.pack(None), trains=True, run="other")
        assert received == sent


class TestRound:
    """What is wrong with a request is a TypeError at the call, before anything is sent."""

    @pytest.fixture
    def round(self, tmp_path: Path) -> Round:
        """Return the first round of a FedProx run, and the grid that nothing may be sent by."""
        keys = config(**{"method": "fedprox", "num-clients": 3, "runs-dir": str(tmp_path), "run-name": "run"})
        assembly = assemble(keys, one_thread=True)
        self.strategy = assembly.strategy(open_folder(tmp_path / "run", keys, "fedprox"))
        self.grid = InProcessGrid(keys)
        self.strategy.federation.roster.wait(self.grid, 1.0)
        self.grid.sent.clear()
        self.model = assembly.initial
        return Round(self.strategy.federation, self.grid, 1)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"reduce": "detla"}, "reduce: 'detla' is unknown; allowed: delta, sum, stack"),
            ({"reduce": "deltas"}, "reduce: 'deltas' is unknown"),
            ({"scatter": {"v": np.zeros((7, 2))}}, r"scatter: 'v' has 7 entries for \d clients"),
            ({"shapes": {"v": (2,)}}, "shapes: those of changes"),
        ],
    )
    def test_options_that_cannot_be_meant(self, round: Round, options: dict[str, Any], said: str) -> None:
        with pytest.raises(TypeError, match=said):
            round.ask("train", round.sample(), **{"reduce": "delta", "send": self.model, **options})
        assert not self.grid.sent

    @pytest.mark.parametrize("wrong", [{"evaluaton": True}, {"nu": 0.1}, {"mu": "0.1"}, {"send_": {}}])
    def test_a_misspelt_option_or_argument(self, round: Round, wrong: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match=next(iter(wrong))):
            round.ask("train", round.sample(), reduce="delta", send=self.model, **wrong)
        assert not self.grid.sent

    def test_a_phase_that_the_client_does_not_have(self, round: Round) -> None:
        with pytest.raises(TypeError, match=r"FedProxClient has no phase 'trian'\. Known: (\w+, )*test, train"):
            round.ask("trian", round.sample(), reduce="delta", send=self.model)
        assert not self.grid.sent

    def test_the_right_ones_are_sent(self, round: Round) -> None:
        cohort = round.sample()
        outcome = round.ask("train", cohort, reduce="delta", send=self.model, mu=0.5)
        assert outcome.clients == cohort
        assert {message.content["config"]["mu"] for message in self.grid.sent} == {0.5}
