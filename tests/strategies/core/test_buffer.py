"""Buffered asynchronous rounds: the synchronous limit, a simulation of events, staleness, resume, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from florilegium.apps.assembly.parts import population
from florilegium.clients.core.wire import Reply, Request
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, num_bytes
from florilegium.strategies.core.arrivals import Step
from florilegium.strategies.core.buffer import Buffer
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.fleet import Fleet
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs, timeless
from tests.support import mostly_long, settings

FLEET: dict[str, Value] = {"fleet.speed": 50.0, "fleet.speed-sigma": 1.5, "fleet.upload": 1.0}
KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 6, "cohort-size": 4, "rounds": 3, "local-epochs": 1, "evaluate-every": 0, **FLEET,
}  # fmt: skip
BUFFERED: dict[str, Value] = {"mode": "buffered", "buffer.size": 2}
ALL_BUSY: dict[str, Value] = {**KEYS, **BUFFERED, "cohort-size": 6, "rounds": 6, "seed": 12}
"""Every client begins anew as soon as it may, so that nothing is drawn. Updates of staleness 0, 1, 2 and 4 occur."""


def _same(first: Path, second: Path) -> bool:
    one, other = read_checkpoint(first), read_checkpoint(second)
    assert one.arrays.keys() == other.arrays.keys()
    assert one.state.keys() == other.state.keys()
    return all(
        np.array_equal(array, getattr(other, part)[name])
        for part in ("arrays", "state")
        for name, array in getattr(one, part).items()
    )


class TestLimit:
    @pytest.mark.parametrize("method", mostly_long(["fedavg", "fedper", "fedprox", "fedrod", "ditto"], "fedavg"))
    @pytest.mark.parametrize("average", mostly_long(["updates", "models"], "updates"))
    def test_a_buffer_as_large_as_the_cohort_is_synchronous(self, tmp_path: Path, method: str, average: str) -> None:
        """K = C: nobody is stale, and every step is a synchronous round, bit for bit, in any number of workers."""
        runs = Runs(
            tmp_path,
            {
                **KEYS,
                "method": method,
                "model": "mlp",
                "server-momentum": 0.5,
                "partitioner": "iid",
            },
        )
        synchronous = runs("synchronous")
        buffered = runs("buffered", mode="buffered", **{"buffer.size": 4, "buffer.average": average})
        assert _same(synchronous, buffered)
        assert timeless(synchronous) == timeless(buffered)
        times = [[line["simulated_seconds"] for line in read_metrics(path)] for path in (synchronous, buffered)]
        assert times[0] == times[1]


def _events(steps: int, size: int, model: str = "linear") -> Iterator[tuple[float, list[tuple[int, str]]]]:
    """Simulate ``steps`` server steps of ``ALL_BUSY`` with another model, with ``size`` updates each.

    Yields:
        For each step its time, and for each client that it uses the step that it began with.
    """
    options = settings(**ALL_BUSY)
    fleet, down_and_up = (
        Fleet(options.fleet, options.seed),
        float(num_bytes(get_arrays(build(model, (1, 8, 8), 10, 1)))),
    )
    members = population(options)
    devices, examples = fleet.devices([m.id for m in members]), np.array([m.train for m in members], dtype=float)
    takes = dict(zip([m.id for m in members], devices.seconds(down_and_up, examples, down_and_up), strict=True))
    begun = dict.fromkeys(takes, (0.0, 1))
    for step in range(1, steps + 1):
        ends = sorted((begun[client][0] + takes[client], client) for client in takes)[:size]
        now = ends[-1][0]
        yield now, [(begun[client][1], client) for _, client in ends]
        begun |= {client: (now, step + 1) for _, client in ends}


class TestSteps:
    @pytest.mark.parametrize(
        ("average", "network"),
        [
            pytest.param("updates", "linear", marks=pytest.mark.long),
            ("models", "linear"),
            ("updates", "cnn-bn"),
        ],
    )
    def test_steps_are_those_of_a_simulation_of_events(self, tmp_path: Path, average: str, network: str) -> None:
        """Who arrives when, which model each was sent, and what the server makes of it, in plain NumPy.

        Running statistics are averaged as models: stale differences made variances negative.
        """
        keys = {"model": network, "buffer.average": average, "buffer.staleness-exponent": 0.7}
        runs = Runs(tmp_path, {**ALL_BUSY, **keys})
        path = runs("run", nodes=1)
        traffic = [
            (Request.unpack(asked.content, trains=True, run=""), Reply.unpack(got.content))
            for asked, got in zip(runs.grid.sent, runs.grid.received, strict=True)
            if asked.metadata.message_type == "train"
        ]
        model = {name: array.astype(float) for name, array in traffic[0][0].arrays.items()}
        models: dict[int, Arrays] = {}
        stale = 0
        for step, (now, used) in enumerate(_events(6, 2, network), start=1):
            models[step] = model
            assert read_metrics(path)[step - 1]["simulated_seconds"] == pytest.approx(now, abs=1e-3)
            total, weight = {name: np.zeros(array.shape) for name, array in model.items()}, 0.0
            for version in sorted({began for began, _ in used}):
                request, reply = traffic.pop(0)
                clients = [client for began, client in used if began == version]
                assert sorted(request.clients) == sorted(clients)
                for name, array in request.arrays.items():
                    np.testing.assert_allclose(array, models[version][name], atol=1e-6)
                own = sum(reply.metrics["weight"])
                factor = (1 + step - version) ** -0.7
                for name, change in reply.arrays.items():
                    as_models = average == "models" or name.endswith(("running_mean", "running_var"))
                    moved = own * (models[version][name] - model[name]) if as_models else 0.0
                    total[name] += factor * (change + moved)
                weight += own
                stale += step > version
            model = {name: array + total[name] / weight for name, array in model.items()}
        assert not traffic
        assert stale >= 3
        for name, array in read_checkpoint(path).arrays.items():
            np.testing.assert_allclose(array, model[name], rtol=1e-4, atol=1e-5)

    @pytest.mark.long
    def test_updates_that_are_too_stale_are_dropped(self, tmp_path: Path) -> None:
        path = Runs(tmp_path, {**ALL_BUSY, "rounds": 8, "buffer.max-staleness": 1})("run")
        lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
        assert lines
        assert all("overtaken" in line["reason"] and line["phase"] == "train" for line in lines)
        assert min(int(line["reason"].split()[0]) for line in lines) == 2
        counts = [line["training"] for line in read_metrics(path)]
        assert all(count["clients"] - count["failed"] == 2 for count in counts)

    @pytest.mark.long
    def test_a_step_waits_no_longer_than_the_deadline(self, tmp_path: Path) -> None:
        """With K = C and the time of the fastest two, two of six updates are there."""
        soon = next(_events(1, 2))[0] + 1e-3
        runs = Runs(tmp_path, {**ALL_BUSY, "rounds": 1, "buffer.size": 6, "round-timeout": soon})
        path = runs("run", **{"min-success": 0.3})
        (line,) = (line for line in read_metrics(path) if "training" in line)
        assert line["training"]["clients"] - line["training"]["failed"] == 2
        assert line["simulated_seconds"] == pytest.approx(soon, abs=1e-3)
        with pytest.raises(RunError, match="only 2 of 6"):
            runs("refused", **{"min-success": 0.5})

    @pytest.mark.parametrize("size", [2, pytest.param(6, marks=pytest.mark.long)])
    def test_clients_that_drop_out_free_their_places(self, tmp_path: Path, size: int) -> None:
        """A step has K updates unless everybody has replied or failed in it, and each client is asked once for it."""
        keys = {
            "buffer.size": size,
            "cohort-size": 6,
            "rounds": 6,
            "fleet.dropout": 0.5,
            "fleet.detection": 0.0,
            "min-success": 0.0,
        }
        runs = Runs(tmp_path, {**KEYS, **BUFFERED, **keys})
        path = runs("run", nodes=1)
        lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
        assert {line["reason"] for line in lines} == {"its device dropped out"}
        asked: dict[int, list[str]] = {}
        for request in runs.grid.sent:
            if request.metadata.message_type == "train":
                content = Request.unpack(request.content, trains=True, run="")
                asked.setdefault(content.work.round, []).extend(content.clients)
        for number in range(1, 7):
            failed = [line["client"] for line in lines if line["round"] == number]
            heard = asked[number] + failed
            assert len({*heard}) == len(heard) <= 6
            assert len(asked[number]) == size or len(heard) == 6
        assert len(lines) > 6

    def test_a_client_that_fails_in_training_is_replaced(self, tmp_path: Path) -> None:
        """Its update is longer than allowed, which shows when it arrives: the step waits for another."""
        keys = {"buffer.size": 1, "cohort-size": 1, "rounds": 12, "num-clients": 8, "max-update-norm": 1.3}
        path = Runs(tmp_path, {**KEYS, **BUFFERED, **keys})("run")
        counts = [line["training"] for line in read_metrics(path) if "training" in line]
        assert [count["clients"] - count["failed"] for count in counts] == [1] * 12
        assert sum(count["failed"] for count in counts) > 0

    def test_a_client_that_is_silent_for_too_long_is_given_up(self, tmp_path: Path) -> None:
        """The server never notices that clients have dropped out, and frees their places after ``round-timeout``."""
        keys = {
            "cohort-size": 2,
            "rounds": 20,
            "num-clients": 8,
            "fleet.dropout": 0.3,
            "fleet.detection": 1e6,
            "round-timeout": 300.0,
        }
        path = Runs(tmp_path, {**KEYS, **BUFFERED, **keys})("run")
        assert read_checkpoint(path).round == 20
        lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
        assert {line["reason"] for line in lines} == {"no reply within 300 s (key round-timeout)"}


class _Arrivals:
    """Notes what a step waits for, and who begins; two clients are busy."""

    def __init__(self) -> None:
        self.models: dict[int, Arrays] = {}
        self.pending = {"a", "b"}
        self.steps: list[Step] = []
        self.begun: list[list[str]] = []

    def take(self, round: Any, step: Step) -> list[tuple[int, Outcome]]:
        self.steps.append(step)
        return []

    def begin(self, round: Any, clients: list[str], path: Any, arguments: Any) -> None:
        self.begun.append(list(clients))

    def forget(self) -> None:
        pass


def _stepped(cohort: int = 6, **keys: Value) -> _Arrivals:
    """Return what step 5 of a buffer with eight clients, in cohorts of this size, has asked for."""
    arrivals, everyone = _Arrivals(), list("abcdefgh")
    federation: Any = SimpleNamespace(
        settings=settings(**keys), cohort_size=lambda number: cohort,
        method=SimpleNamespace(trainable=lambda: everyone), draw=lambda free, missing, *path, wait: free[:missing],
    )  # fmt: skip
    buffer = Buffer(federation)
    buffer.__dict__["_arrivals"] = arrivals
    round: Any = SimpleNamespace(
        number=5, record=SimpleNamespace(failures={}), require=lambda outcome, asked: outcome
    )  # fmt: skip
    buffer.step(round, {}, lambda *_: {})
    return arrivals


@pytest.mark.parametrize(
    ("size", "share", "enough"), [(3, 0.5, 2), (4, 0.5, 2), (5, 0.1, 1), (5, 0.0, 1), (3, 1.0, 3), (7, 0.3, 3)]
)
def test_a_step_is_taken_with_the_least_number_that_min_success_allows(size: int, share: float, enough: int) -> None:
    (step,) = _stepped(**{"buffer.size": size, "min_success": share}).steps
    assert (step.size, step.enough) == (size, enough)


@pytest.mark.parametrize(("most", "stale"), [(0, 99), (2, 3), (1, 2)])
def test_updates_as_stale_as_allowed_count(most: int, stale: int) -> None:
    """In step 5 the model of round 5 − s has staleness s; 0: any is allowed."""
    (step,) = _stepped(**{"buffer.max-staleness": most}).steps
    assert [step.too_stale(5 - s) == "" for s in range(4)] == [s < stale for s in range(4)]


def test_as_many_begin_as_are_missing_to_the_concurrency() -> None:
    """Six in all: two are busy; once one update has arrived, its place stays free until the next step."""
    arrivals = _stepped()
    (step,) = arrivals.steps
    step.begin({"c"}, 0)
    step.begin({"c"}, 1)
    step.begin({"c", "d"}, 3)
    step.begin({"c", "d"}, 4)
    assert arrivals.begun == [list("cdef"), list("defg"), list("def"), list("e")]


def test_a_resumed_run_is_the_whole_one(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        **BUFFERED, "rounds": 6, "checkpoint-every": 1, "fleet.dropout": 0.2, "fleet.detection": 0.0,
        "server-momentum": 0.5,
    }  # fmt: skip
    whole, broken = Runs(tmp_path, KEYS).whole_and_broken(4, **keys)
    assert _same(whole, broken)
    assert any(name.startswith("buffer:") for name in read_checkpoint(whole).state)
    assert read_checkpoint(whole).facts["buffer"] == read_checkpoint(broken).facts["buffer"]
    assert timeless(whole) == timeless(broken)


@pytest.mark.parametrize(("keys", "said"), [
    ({"method": "scaffold"}, "mode: 'buffered' is not supported by method 'scaffold'"),
    ({"method": "fedprox", "fedprox.adaptive": True}, "fedprox.adaptive"),
    ({"privacy.unit": "client", "privacy.noise-multiplier": 1.0}, "privacy.unit"),
    ({"secure-aggregation": True}, "secure-aggregation"),
    ({"aggregation": "median"}, "aggregation"),
    ({"oversample": 1.5}, "oversample"),
    ({"final-participation": 1.0}, "final-participation"),
    ({"fleet.speed": 0.0, "fleet.upload": 0.0}, "needs clients that take time"),
    ({"buffer.size": 5}, "buffer.size"),
])  # fmt: skip
def test_what_cannot_be_buffered_is_refused(tmp_path: Path, keys: dict[str, Value], said: str) -> None:
    privacy = {"weighting": "uniform"} if "privacy.unit" in keys else {}
    with pytest.raises(ConfigurationError, match=said):
        Runs(tmp_path, {**KEYS, **BUFFERED})("refused", **{**privacy, **keys})
