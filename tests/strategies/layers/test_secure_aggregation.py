"""Runs with secure aggregation: the plain run's results, whoever vanishes; what is refused; what devices tell."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message
from scipy.stats import kstest

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.reports import SHARE, Range, validation
from florilegium.clients.core.secure_layout import METRIC_BOUND, Layout, Scale, Sums
from florilegium.clients.core.secure_wire import RECORD, STAGE, Stage, StageReply, Terms
from florilegium.clients.core.wire import Reply
from florilegium.clients.layers.secure import SECRETS
from florilegium.common.declarations import declared
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.privacy.accounting import Release, total
from florilegium.privacy.secure_sum.party import ENTRY
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.bound import gap
from florilegium.strategies.layers.secure_exchange import credible
from tests.fingerprints import own
from tests.grid import FIRST_NODE
from tests.runs import Runs
from tests.support import TASK, claiming, mostly_long, settings

SECURE = [
    name
    for name, method in METHODS.items()
    if claiming(name, "secure aggregation") or not why_not(method, "secure aggregation")
]
SMALL: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 6, "participation": 1.0, "rounds": 2, "local-steps": 2,
    "evaluate-every": 2, "max-update-norm": 10.0, "secure-vanishing": 0.34,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out small runs, a client to a node."""
    return Runs(tmp_path, SMALL)


def _largest_difference(one: Path, other: Path) -> float:
    first, second = (read_checkpoint(path) for path in (one, other))
    arrays = [({**first.arrays, **first.state}, {**second.arrays, **second.state})]
    assert all(a.keys() == b.keys() for a, b in arrays)
    return max(float(np.abs(a[n].astype(float) - b[n]).max(initial=0.0)) for a, b in arrays for n in a)


def _loses(losses: dict[str, set[int]]) -> Callable[[Message], Message | None]:
    """Return what lets nodes vanish, by the stage in which they do not reply."""
    gone: set[int] = set()

    def intercept(message: Message) -> Message | None:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id - FIRST_NODE
        stage = Stage.unpack(message.content).stage if kind == STAGE else kind
        gone.update({node} & losses.get(stage, set()))
        lost = node in gone and kind != "query.roster" and stage != "evaluate"
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "vanished"), reply_to=message) if lost else None

    return intercept


@pytest.mark.parametrize("method", mostly_long(SECURE, "fedavg"))
def test_results_are_those_of_the_plain_run(method: str, tmp_path: Path) -> None:
    keys = {**SMALL, "num-clients": 9, "model": "mlp", "max-update-norm": 300.0, "secure-vanishing": 0.2}
    keys |= {**own(method), **claiming(method, "secure aggregation"), "participation": 1.0}
    messages = declared(METHODS[method].strategy_class(), Messages, METHODS[method].hyper()())
    keys |= {"max-update-norm": 0.0} if messages is not None and gap(messages) else {}
    runs = Runs(tmp_path, keys)
    try:
        secure = runs("secure", **{"secure-aggregation": True})
    except ConfigurationError as error:
        assert "'uniform'" in str(error)  # noqa: PT017 the method's server does not know clients' sizes
        runs = Runs(tmp_path, {**keys, "weighting": "uniform"})
        secure = runs("secure", **{"secure-aggregation": True})
    plain = runs("plain")
    assert _largest_difference(plain, secure) < 1e-4
    _check_figures(plain, secure)
    assert not [*secure.rglob(SECRETS)]


PERSONAL = ["ditto", "apfl", "pfedme", "fedala", "fedrep", "fedrod", "feddbe", "gpfl", "knn-per"]


@pytest.mark.parametrize("method", mostly_long(PERSONAL, "ditto", "fedrep"))
def test_clients_without_a_personal_model_take_part_in_secure_evaluations(method: str, tmp_path: Path) -> None:
    keys = {**SMALL, "model": "mlp", "method": method, "participation": 0.67, "rounds": 1, "evaluate-every": 1}
    runs = Runs(tmp_path, {**keys, "max-update-norm": 300.0, "secure-vanishing": 0.2})
    plain, secure = runs("plain"), runs("secure", **{"secure-aggregation": True})
    _check_figures(plain, secure)
    assert not (secure / "failures.jsonl").exists()


def test_ppfes_clients_without_a_member_take_part_in_secure_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = BaseClient.perform

    def failing(self: BaseClient, name: str, arrays: Arrays, arguments: Any) -> Answer:
        if self.client_id == "4" and name == "finish" and self.round == 1:
            raise RunError("it has no power left")
        return perform(self, name, arrays, arguments)

    monkeypatch.setattr(BaseClient, "perform", failing)
    stages: dict[str, Value] = {"ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "1,1", "ppfe.reduction": "none"}
    runs = Runs(tmp_path, {**SMALL, **stages, "model": "mlp", "method": "ppfe", "max-update-norm": 300.0})
    plain, secure = runs("plain"), runs("secure", **{"secure-aggregation": True})
    _check_figures(plain, secure)
    assert len((secure / "failures.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def _check_figures(plain: Path, secure: Path) -> None:
    """Check that the figures of two runs are the same, but for those that secure sums do not tell."""
    for before, after in zip(read_metrics(plain), read_metrics(secure), strict=True):
        for part in before.keys() & {"seen", "unlabeled", "training"}:
            assert after[part].keys() >= before[part].keys() - {"worst_decile", "validation_loss_median"}
            for name in (after[part].keys() & before[part].keys()) - {"seconds", "bytes_up", "bytes_down"}:
                assert after[part][name] == pytest.approx(before[part][name], rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize(
    ("stages", "without"),
    [
        ({"shares": {3}, "reveal": {4}}, {3}),
        pytest.param({"keys": {1}, "shares": {3}}, {1, 3}, marks=pytest.mark.long),
        pytest.param({"train": {0, 5}}, {0, 5}, marks=pytest.mark.long),
        pytest.param({"train": {2}, "reveal": {4}}, {2}, marks=pytest.mark.long),
    ],
)
def test_results_are_those_of_the_plain_run_of_whoever_has_come_through(
    run: Runs, stages: dict[str, set[int]], without: set[int]
) -> None:
    keys: dict[str, Value] = {"rounds": 1, "evaluate-every": 0}
    masked = run("secure", 6, _loses(stages), **keys, **{"secure-aggregation": True})
    plain = run("plain", 6, _loses({"train": without}), **keys)
    assert _largest_difference(masked, plain) < 1e-6
    entry, other = (read_metrics(path)[0]["training"] for path in (masked, plain))
    assert (entry["clients"], entry["failed"]) == (other["clients"], other["failed"]) == (6, len(without))


def test_too_many_who_vanish_end_the_run_and_change_nothing(run: Runs) -> None:
    run("fails", 6, rounds=1, **{"secure-aggregation": True})
    before = read_checkpoint(run.folder / "fails").arrays
    with pytest.raises(RunError, match="secure sum has failed: 3 of 6 parties have vanished, at most 2 may"):
        run("fails", 6, _loses({"train": {0, 1, 2}}), rounds=2, resume="fails", **{"secure-aggregation": True})
    checkpoint = read_checkpoint(run.folder / "fails")
    assert checkpoint.round == 1
    assert all(np.array_equal(array, before[name]) for name, array in checkpoint.arrays.items())


def test_a_client_that_fails_or_sends_nonsense_is_left_out(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def nonsense(message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return None
        clients = cast(list[str], message.content["config"]["clients"])
        if "1" in clients:
            content = Reply(clients, {"wide": np.zeros(7, np.uint64), "narrow": np.zeros(1, np.uint32)}, {}, {}).pack()
            content[RECORD] = ConfigRecord({"layout": '[[["0.weight", [1]]], ["loss"]]'})
            return Message(content, reply_to=message)
        return None

    perform = BaseClient.perform

    def failing(self: BaseClient, name: str, arrays: Arrays, arguments: Any) -> Answer:
        if self.client_id == "4" and name == "train":
            raise RunError("it has no power left")
        return perform(self, name, arrays, arguments)

    monkeypatch.setattr(BaseClient, "perform", failing)
    secure = run("secure", 6, nonsense, rounds=1, **{"secure-aggregation": True, "evaluate-every": 0})
    lines = [json.loads(line) for line in (secure / "failures.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["client"] for line in lines} == {"1", "4"}
    assert not [*(secure / "clients" / "4").glob(SECRETS)]


@pytest.mark.parametrize("length", [0, ENTRY - 1, ENTRY + 1])
def test_public_keys_of_another_length_are_refused_with_a_reason(length: int, run: Runs) -> None:
    def cut(message: Message) -> Message | None:
        if message.metadata.message_type != STAGE or Stage.unpack(message.content).stage != "keys":
            return None
        clients = Stage.unpack(message.content).messages
        return Message(StageReply({"1": bytes(length)}, {}).pack(), reply_to=message) if "1" in clients else None

    path = run("cut", 6, cut, rounds=1, **{"secure-aggregation": True, "evaluate-every": 0})
    reasons = {}
    for line in (path / "failures.jsonl").read_text(encoding="utf-8").splitlines():
        failure = json.loads(line)
        reasons.setdefault(failure["client"], failure["reason"])
    assert reasons == {"1": f"unusable reply: its public keys have {length} bytes, expected {ENTRY}"}


def _masks_of_its_own(*norms: str) -> Callable[[Message], Message | None]:
    """Return what lets client 1 send a random vector in training; ``norms``: metrics without privacy."""
    metrics = sorted(["accuracy", "accuracy_global", "loss", "loss_global", *norms])
    layout = json.dumps([[["fc.1.bias", [10]], ["fc.1.weight", [10, 64]]], metrics])
    rng = np.random.default_rng(1)

    def random(message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return None
        clients = cast(list[str], message.content["config"]["clients"])
        if "1" not in clients:
            return None
        arrays: Arrays = {
            "wide": rng.integers(0, 2**64, 4 + 4 * len(metrics), np.uint64),
            "narrow": rng.integers(0, 2**32, 650, np.uint32),
        }
        parties = cast(int, message.content[RECORD]["parties"])  # type: ignore[index]
        arrays["wide"][0] = Scale(parties, 1.0, uniform=False, norm=0.0, range=1.0, coarse=True).one()
        content = Reply(clients, arrays, {}, {}).pack()
        content[RECORD] = ConfigRecord({"layout": layout})
        return Message(content, reply_to=message)

    return random


def test_a_vector_with_other_masks_is_noticed(run: Runs) -> None:
    keys: dict[str, Value] = {"secure-aggregation": True, "min-success": 0.0, "secure-vanishing": 0.4}
    with pytest.raises(RunError, match="more than was agreed"):
        run("random", 6, _masks_of_its_own("gradient-norm", "update-norm"), rounds=1, **keys)


@pytest.mark.parametrize("value", [1.2, 16000.0, -0.1])
def test_a_metric_whose_sum_cannot_be_is_left_out(
    value: float, run: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode = Scale.encode

    def boast(scale: Scale, layout: Layout, arrays: Arrays, weight: float, examples: float, *rest: Any) -> Any:
        metrics, *more = rest
        return encode(scale, layout, arrays, weight, examples, {**metrics, "accuracy": value}, *more)

    monkeypatch.setattr(Scale, "encode", boast)
    figures = read_metrics(run("boast", 6, rounds=1, **{"secure-aggregation": True, "evaluate-every": 1}))[-1]["seen"]
    assert "loss" in figures
    assert not {"accuracy", "accuracy_weighted", "std"} & figures.keys()
    assert f"metric 'accuracy' is left out: its sum over 6 clients is {6 * value:.4g}" in caplog.text


@pytest.mark.parametrize(
    ("four", "possible"),
    [
        ((3, 1.5, 0.75, 30), True), ((0, 0, 0, 0), True), ((3, 3, 3, 60), True),
        ((4, 1.5, 0.75, 30), False), ((-1, 0, 0, 0), False), ((3, 3.1, 3, 60), False), ((3, -0.1, 0, 0), False),
        ((3, 1.5, 3.1, 30), False), ((3, 1.5, -0.1, 30), False), ((3, 1.5, 0.75, 61), False),
        ((3, 1.5, 0.75, -1), False), ((2**-50, 2e-5, 0, 0), False),
    ],
)  # fmt: skip
def test_which_sums_of_shares_can_be(four: tuple[float, float, float, float], possible: bool) -> None:
    """Of three clients with 60 examples."""
    assert credible("accuracy", four, Sums({}, 3, 3, 60, {}), {"accuracy": SHARE}) is possible


def test_numbers_that_count_as_the_bound_are_credible() -> None:
    b = METRIC_BOUND
    four = (3.0, 3 * b, 3 * b * b, 60 * b)
    for low, high in ((20000.0, 50000.0), (0.0, 50000.0)):
        assert credible("size", four, Sums({}, 3, 3, 60, {}), {"size": Range(low, high)})
    negative = (four[0], -four[1], four[2], -four[3])
    assert credible("size", negative, Sums({}, 3, 3, 60, {}), {"size": Range(-50000.0, -20000.0)})


@pytest.mark.long
def test_private_and_resumed_runs_are_the_same(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        **SMALL, "secure-aggregation": True, "rounds": 3, "evaluate-every": 1, "max-update-norm": 0.0,
        "weighting": "uniform", "privacy.unit": "client", "privacy.sampling": "fixed", "privacy.clip-norm": 0.1,
        "privacy.noise-multiplier": 1e-7,
    }  # fmt: skip
    runs = Runs(tmp_path, keys)
    whole, broken = runs.whole_and_broken(2)
    plain = runs("plain", **{"secure-aggregation": False})
    assert _largest_difference(whole, broken) < 1e-6
    assert _largest_difference(whole, plain) < 3 * 1e-4 * 0.1
    summary = json.loads((whole / "summary.json").read_text(encoding="utf-8"))
    assert summary["secure_aggregation"]["exchanges"] == 6
    assert 0 < summary["secure_aggregation"]["rounding_error"] < 1e-4


def test_devices_add_noise_that_is_right_if_as_many_collude_and_vanish_as_may(tmp_path: Path) -> None:
    z, c, m = 2.0, 0.01, 6
    keys: dict[str, Value] = {
        **SMALL, "secure-aggregation": True, "rounds": 1, "evaluate-every": 0, "max-update-norm": 0.0,
        "weighting": "uniform", "privacy.unit": "client", "privacy.sampling": "fixed", "privacy.clip-norm": c,
        "privacy.noise-at": "device", "privacy.noise-multiplier": z,
    }  # fmt: skip
    runs = Runs(tmp_path, keys)
    with pytest.raises(RunError, match="more than was agreed"):
        runs("refused", 6, _masks_of_its_own())
    charged = json.loads((tmp_path / "refused" / "privacy.json").read_text(encoding="utf-8"))["releases"]
    assert len(charged) == 1  # the sum was not used, but the server has seen it
    quiet = read_checkpoint(runs("quiet", 6, **{"privacy.noise-multiplier": 1e-3})).arrays
    done = runs("loud", 6, _loses({"train": {0, 1}}))  # of six; one more may collude
    noise = np.concatenate([(array - quiet[n]).ravel() for n, array in read_checkpoint(done).arrays.items()])
    deviation = z * c * math.sqrt((m - 2) / 3) / m  # of which three are honest
    assert noise.std() == pytest.approx(deviation, rel=0.1)
    assert kstest(noise / deviation, "norm").pvalue > 1e-4
    told = json.loads((done / "summary.json").read_text(encoding="utf-8"))["privacy"]
    central = total([Release("gaussian", z)], 1e-5)
    assert central < told["epsilon"] < 1.12 * central


# --------------------------------------------------------------------------------------- refused


def test_methods_that_need_single_clients_are_refused(run: Runs) -> None:
    for method in ("fedfomo", "fednova"):
        with pytest.raises(ConfigurationError, match=f"secure-aggregation: it is not supported by method '{method}'"):
            run("refused", method=method, **{"secure-aggregation": True})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"aggregation": "median", "attackers": 1}, "aggregation"),
        ({"oversample": 1.5}, "oversample"),
        ({"patience": 2, "validation-fraction": 0.2}, "patience"),
        ({"max-update-norm": 0.0}, "max-update-norm"),
        ({"num-clients": 3}, "secure-vanishing"),
        ({"evaluate-clients": 2}, "seen clients, which are evaluated, has 2 clients"),
        pytest.param(
            {"privacy.unit": "example", "privacy.noise-multiplier": 1.0}, "privacy.unit", marks=pytest.mark.long
        ),
        (
            {
                "privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform",
                "privacy.clip-quantile": 0.5, "privacy.sampling": "fixed",
            },
            "privacy.clip-quantile",
        ),
    ],
)  # fmt: skip
def test_settings_with_which_sums_are_not_secure_are_refused(run: Runs, keys: dict[str, Value], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        run("refused", **{"secure-aggregation": True, **keys})
    assert not (run.folder / "refused" / "config.toml").exists()


def test_a_client_replies_in_the_clear_to_nobody(run: Runs) -> None:
    def clear(message: Message) -> None:
        message.content.pop(RECORD) if message.metadata.message_type == "train" else None

    with pytest.raises(RunError, match="secure sums alone"):
        run("clear", 6, clear, **{"secure-aggregation": True})


# -------------------------------------------------------------------------------------- messages


def test_messages_survive_the_wire_and_unsound_ones_do_not() -> None:
    stage = Stage("shares", b"t" * 16, "run", "id", {"a": b"1", "b": b""})
    assert Stage.unpack(stage.pack()) == stage
    reply = StageReply({"a": b"1"}, {"b": "why"})
    assert StageReply.unpack(reply.pack()) == reply
    terms = Terms(b"t" * 16, 3, 9.0, {"a": 4.0, "b": 5.0}, 1.0, True, 0.5, {"a": b"1", "b": b"2"})
    content = stage.pack()
    content[RECORD] = terms.pack()
    assert Terms.unpack(content, ["a", "b"]) == terms
    for field, wrong in (("stage", "mask"), ("token", "t"), ("messages", [b"1"]), ("clients", ["a", "a"])):
        broken = stage.pack()
        broken[RECORD][field] = wrong  # type: ignore[index]
        with pytest.raises(RunError):
            Stage.unpack(broken)
    for field, value in (("examples", [4.0, -1.0]), ("total", float("nan")), ("parties", 3.0), ("clients", ["b", "a"])):
        content[RECORD] = terms.pack()
        content[RECORD][field] = value  # type: ignore[index]
        with pytest.raises(RunError):
            Terms.unpack(content, ["a", "b"])
    for text in ("[]", "[[], {}]", '[[["x", [-1]]], []]', '[[["x", 3]], []]', "[[], [1]]", 3):
        with pytest.raises((ValueError, TypeError)):
            Layout.read(text)


def test_sums_of_numbers_are_exact_and_metrics_are_bounded() -> None:
    scale = Scale(3, 60.0, uniform=False, norm=0.0, range=100.0, coarse=False)
    clients = [
        ({"x": np.array([[1.0, -2.0]])}, 10.0, {"loss": 0.5, "accuracy": 1.0}),
        ({"x": np.array([[3.5, 100.0]])}, 20.0, {"loss": 1e30, "accuracy": float("nan")}),
        ({"x": np.array([[-1.0, 0.25]])}, 30.0, {"loss": -0.25, "accuracy": 0.0}),
    ]
    layout, total = Layout.of(clients[0][0], clients[0][2]), None
    for arrays, examples, metrics in clients:
        vector = scale.encode(layout, arrays, examples, examples, metrics, 30.0)
        total = vector if total is None else (total.add(vector), total)[1]  # type: ignore[func-returns-value]
    assert total is not None
    sums = scale.decode(Layout.read(layout.text()), total)
    assert np.array_equal(sums.arrays["x"], [[3.5, 98.25]])
    assert (sums.clients, sums.weight, sums.examples) == (3, 60, 60)
    assert sums.metrics["accuracy"] == (2, 1, 1, 10)
    b = METRIC_BOUND
    assert sums.metrics["loss"] == (3, b + 0.25, b * b + 0.3125, 20 * b - 2.5)
    for arrays, examples in (({"x": np.array([[101.0, 0.0]])}, 1.0), ({"x": np.zeros((1, 2))}, 31.0)):
        with pytest.raises(ValueError, match="larger"):
            scale.encode(layout, arrays, 1.0, examples, clients[0][2], 30.0)


# --------------------------------------------------------------------------------------- devices


def test_devices_tell_neither_sizes_nor_errors_nor_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, dataset = federate(settings(**{"partitioner": "iid", "num-clients": 5}))
    nodes = []
    for client in range(5):
        write_device(federation, dataset, client, tmp_path / str(client))
        nodes.append({"data-path": str(tmp_path / str(client)), "client-id": f"site-{client}"})
    perform = BaseClient.perform

    def failing(self: BaseClient, name: str, arrays: Arrays, arguments: Any) -> Answer:
        if self.client_id == "site-3" and name == "train":
            raise RunError("row 7 is 0.25")
        answer = perform(self, name, arrays, arguments)
        if self.client_id == "site-1":  # as if it had too few examples to hold some back
            for metric in validation(TASK):
                answer.metrics.pop(metric, None)
        return answer

    monkeypatch.setattr(BaseClient, "perform", failing)
    runs = Runs(
        tmp_path / "runs",
        {**SMALL, "num-clients": 5, "rounds": 1, "validation-fraction": 0.2, "secure-aggregation": True},
    )
    done = runs("devices", nodes)
    line = json.loads((done / "failures.jsonl").read_text(encoding="utf-8"))
    assert (line["client"], line["reason"]) == ("site-3", "it failed; the device's log says why")
    announced = [m.content["roster"] for m in runs.grid.received if "roster" in m.content]
    assert {*announced[0]["train"], *announced[0]["test"]} <= {2**power for power in range(12)}  # type: ignore[misc]
    answers = [Reply.unpack(m.content) for m in runs.grid.received if "outcome" in m.content]
    assert len(answers) == 10
    for answer in answers:
        assert not answer.metrics
        assert answer.arrays.keys() <= {"wide", "narrow"}
    figures = {"accuracy", "loss", "accuracy_weighted", "std", *validation(TASK)}
    assert read_metrics(done)[-1]["seen"].keys() == figures
    assert len((done / "failures.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert not (done / "clients.csv").exists()
    assert not [*tmp_path.rglob(SECRETS)]
