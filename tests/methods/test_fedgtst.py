"""FedGTST: the regulariser and its gradient, the exchange of norms, its limit, what travels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from florilegium.clients.core.base import Answer
from florilegium.clients.core.wire import Reply
from florilegium.clients.fedgtst import FedGTSTClient
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.research.studies.norms import write_norms
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform, settings

KEYS: dict[str, Value] = {
    "method": "fedgtst", "model": "mlp", "num-clients": 8, "participation": 0.5, "rounds": 4, "local-epochs": 1,
    "learning-rate": 0.1, "fedgtst.coefficient": 0.05, "fedgtst.standard-share": 0.5,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _examples(count: int, dtype: torch.dtype = torch.float32) -> Examples:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=dtype)
    return Examples(x, torch.randint(10, (count,), generator=generator))


def _norm_by_hand(weight: np.ndarray, bias: np.ndarray, examples: Examples) -> float:
    """Softmax regression: ∇_W = mean (p − e_y) xᵀ and ∇_b = mean (p − e_y)."""
    x = examples.x.flatten(1).numpy()
    z = x @ weight.T + bias
    p = np.exp(z - z.max(axis=1, keepdims=True))
    residual = p / p.sum(axis=1, keepdims=True) - one_hot(examples.y, 10).numpy()
    by_weight, by_bias = residual.T @ x / len(x), residual.mean(axis=0)
    return float(np.sqrt((by_weight**2).sum() + (by_bias**2).sum()))


@pytest.mark.parametrize("norm_of", ["batch", "client"])
@pytest.mark.parametrize("alignment", ["absolute", "relative"])
def test_regulariser_of_a_linear_model(norm_of: str, alignment: str) -> None:
    """The norm, and the penalty, are those of the closed form."""
    examples, rows, guide = _examples(12, torch.float64), torch.arange(5), 0.7
    model = build("linear", (1, 8, 8), 10, 1).double()
    keys = {**KEYS, "fedgtst.norm-of": norm_of, "fedgtst.alignment": alignment}
    client = make_client(examples, model, **{**keys, "model": "linear"})
    total, norm = client.regularised(rows, guide, [*client.model.parameters()])
    weight, bias = get_arrays(model).values()
    expected = _norm_by_hand(weight, bias, examples.rows(rows) if norm_of == "batch" else examples)
    plain = torch.nn.functional.cross_entropy(model(examples.x[rows]), examples.y[rows])
    away = expected - guide if alignment == "absolute" else expected / guide - 1
    assert norm.item() == pytest.approx(expected, rel=1e-9)
    assert total.item() == pytest.approx(plain.item() + 0.05 * away**2, rel=1e-9)


@pytest.mark.parametrize("norm_of", ["batch", "client"])
def test_gradient_against_finite_differences(norm_of: str) -> None:
    examples, rows, step = _examples(9, torch.float64), torch.arange(6), 1e-6
    model = build("mlp", (1, 8, 8), 10, 1).double()
    client = make_client(examples, model, **{**KEYS, "fedgtst.norm-of": norm_of, "fedgtst.coefficient": 0.5})
    total, _ = client.regularised(rows, 2.0, [*client.model.parameters()])
    gradients = torch.autograd.grad(total, [*model.parameters()])
    rng = np.random.default_rng(1)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        for _ in range(4):
            index = tuple(int(rng.integers(n)) for n in parameter.shape)
            before, ends = parameter.detach()[index].item(), []
            for sign in (1, -1):
                parameter.data[index] = before + sign * step
                ends.append(client.regularised(rows, 2.0, [*client.model.parameters()])[0].item())
            parameter.data[index] = before
            assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_without_coefficient_it_is_fedavg(run: Runs) -> None:
    none = read_checkpoint(run("none", **{"fedgtst.coefficient": 0.0})).arrays
    plain = read_checkpoint(run("plain", method="fedavg")).arrays
    assert none.keys() == plain.keys()
    assert all(np.array_equal(none[name], array) for name, array in plain.items())


def test_regulariser_changes_the_model_from_the_second_round_on(run: Runs) -> None:
    for rounds, same in ((1, True), (2, False)):
        ours, plain = (
            read_checkpoint(run(f"{method}{rounds}", method=method, rounds=rounds)).arrays
            for method in ("fedgtst", "fedavg")
        )
        assert all(np.array_equal(ours[name], array) for name, array in plain.items()) == same


@pytest.mark.parametrize("measured", ["received", "trained", "epoch"])
def test_clients_that_train_both_ways_send_the_larger_norm(measured: str) -> None:
    examples, model = _examples(20), build("mlp", (1, 8, 8), 10, 1)
    client = make_client(examples, model, **{**KEYS, "fedgtst.measured": measured, "fedgtst.coefficient": 0.5})
    start = get_arrays(model)

    def norm(**arguments: Any) -> float:
        return perform(client, "train", start, round=2, **arguments).metrics["norm"]

    for guide in (0.01, 50.0):  # the regulariser lowers the norm, and raises it
        alone, plain = norm(guide=guide, standard=["7"]), norm()
        assert norm(guide=guide, standard=["0"]) == max(alone, plain)
        if measured != "received":
            assert alone != plain
    both = perform(client, "train", start, round=2, guide=50.0, standard=["0"]).arrays
    alone_arrays = perform(client, "train", start, round=2, guide=50.0, standard=[]).arrays
    assert all(np.array_equal(both[name], array) for name, array in alone_arrays.items())


@pytest.mark.parametrize("guide", ["largest", "standard"])
def test_guide_is_the_largest_norm_received(run: Runs, guide: str) -> None:
    path = run("run", **{"fedgtst.guide": guide})
    course = json.loads((path / "summary.json").read_text())["fedgtst"]["course"]
    sent: dict[int, set[float]] = {}
    for message in run.grid.sent:
        if message.metadata.message_type == "train":
            sent.setdefault(int(message.content["config"]["round"]), set()).add(message.content["config"].get("guide"))
    norms: dict[int, list[float]] = {}
    standard: dict[int, list[float]] = {}
    for message, reply in zip(run.grid.sent, run.grid.received, strict=True):
        if message.metadata.message_type == "train":
            metrics, number = Reply.unpack(reply.content).metrics, int(message.content["config"]["round"])
            norms.setdefault(number, []).extend(metrics["norm"])
            standard.setdefault(number, []).extend(metrics.get("standard_norm", []))
    assert sent[1] == {None}
    for number in (2, 3, 4):
        candidates = norms[number - 1] if guide == "largest" or number == 2 else standard[number - 1]
        assert sent[number] == {np.nanmax(candidates)}
    assert [entry["norm"] for entry in course] == pytest.approx([np.mean(values) for values in norms.values()])
    assert [entry["variance"] for entry in course] == pytest.approx([np.var(values) for values in norms.values()])
    if guide == "standard":
        assert all(np.isfinite(values).sum() == 2 for number, values in standard.items() if number > 1)  # half of four


def test_only_scalars_travel_besides_the_model(run: Runs) -> None:
    path = run("run")
    model = read_checkpoint(path).arrays.keys()
    for message in (*run.grid.sent, *run.grid.received):
        for record in message.content.array_records.values():
            assert record.keys() <= model


def test_variance_of_the_gradients_themselves(run: Runs) -> None:
    """mean ‖g_k‖² − ‖mean g_k‖², of gradients taken here."""
    keys: dict[str, Value] = {"fedgtst.diagnose": True, "rounds": 1, "participation": 1.0, "num-clients": 3}
    course = json.loads((run("run", **keys) / "summary.json").read_text())["fedgtst"]["course"]
    federation, dataset = federate(settings(**{**KEYS, **keys}))
    gradients = []
    for client in range(3):
        model, examples = build("mlp", (1, 8, 8), 10, 1), simulated(federation, dataset, client).train
        torch.nn.functional.cross_entropy(model(examples.x), examples.y).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    stacked = torch.stack(gradients)
    expected = float((stacked - stacked.mean(dim=0)).square().sum(dim=1).mean())
    assert course[0]["vector_variance"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("guide", "said"),
    [(float("nan"), r"argument 'guide' .*nan"), (float("inf"), "guide norm is inf"), (-1.0, r"guide norm is -1\.0")],
)
def test_guide_norm_that_is_none(guide: float, said: str) -> None:
    client = make_client(_examples(5), model := build("mlp", (1, 8, 8), 10, 1), **KEYS)
    with pytest.raises(RunError, match=said):
        perform(client, "train", get_arrays(model), round=2, guide=guide)


@pytest.mark.long
def test_norms_over_the_rounds(run: Runs, tmp_path: Path) -> None:
    path = run("run", rounds=8)
    course = json.loads((path / "summary.json").read_text())["fedgtst"]["course"]
    table = write_norms([path, path], tmp_path / "out")
    parts = " | ".join(f"{(course[i]['norm'] + course[i + 1]['norm']) / 2:.3g}" for i in (0, 2, 4, 6))
    assert f"| run | mean norm | {parts} |" in table
    assert (tmp_path / "out" / "norms.png").stat().st_size > 1000
    with pytest.raises(RunError, match="fedavg"):
        write_norms([run("plain", method="fedavg")], tmp_path / "out")


def test_a_norm_that_explodes_is_no_guide(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's norm of 1e30 is left out; the run goes on with the largest of the others."""
    honest = FedGTSTClient.perform

    def explode(client: FedGTSTClient, name: str, arrays: Arrays, arguments: Mapping[str, Any]) -> Answer:
        answer = honest(client, name, arrays, arguments)
        if name == "train" and client.client_id == "3":
            answer.metrics["norm"] = 1e30
        return answer

    monkeypatch.setattr(FedGTSTClient, "perform", explode)
    path = run("run", participation=1.0, **{"fedgtst.guide": "largest"})
    course = json.loads((path / "summary.json").read_text())["fedgtst"]["course"]
    assert all(0 < entry["guide"] < 100 for entry in course)


def test_guide_stays_where_nobody_trained_without_the_regulariser(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From round 2 on all clients that were to do so fail; the others go on with the guide of round 1."""
    honest = FedGTSTClient.perform

    def fail(client: FedGTSTClient, name: str, arrays: Arrays, arguments: Mapping[str, Any]) -> Answer:
        if client.client_id in arguments.get("standard", ()):
            raise RunError("out of battery")
        return honest(client, name, arrays, arguments)

    monkeypatch.setattr(FedGTSTClient, "perform", fail)
    course = json.loads((run("run") / "summary.json").read_text())["fedgtst"]["course"]
    assert len(course) == 4
    assert {entry["guide"] for entry in course} == {course[0]["guide"]}


def test_standard_guide_needs_standard_clients(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="standard-share"):
        run("refused", **{"fedgtst.guide": "standard", "fedgtst.standard-share": 0.0})


def test_devices_send_no_gradients() -> None:
    client = make_client(_examples(5), model := build("mlp", (1, 8, 8), 10, 1), **KEYS)
    client.data.simulated = False
    with pytest.raises(RunError, match="device"):
        perform(client, "gradient", get_arrays(model), round=2)


def test_resume_and_packing(run: Runs) -> None:
    # Larger coefficients make chaos of rounding.
    run.check_resume_and_packing(**{"evaluate-every": 1, "fedgtst.coefficient": 0.005})
