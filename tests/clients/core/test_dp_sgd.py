"""Example-level privacy: gradients against examples taken one by one, noise, the account, whole runs."""

from __future__ import annotations

import csv
import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.stats import chi2
from torch import nn
from torch.nn.functional import cross_entropy

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.base import SUM_MULTIPLIER
from florilegium.clients.core.reports import COST, reports_of
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.training import Group, train
from florilegium.clients.core.wire import Work
from florilegium.clients.fedavg import FedAvgClient
from florilegium.clients.node.host import Host
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.privacy.dp_sgd import Account, PrivateGradients, multiplier_for
from florilegium.privacy.steps import PrivateSteps
from florilegium.strategies.folder.run_folder import read_checkpoint, read_config
from tests.runs import Runs
from tests.support import TASK, make_client, mostly_long, perform, settings

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 4, "participation": 0.5, "rounds": 3, "local-epochs": 1,
    "learning-rate": 0.05, "momentum": 0.0, "batch-size": 16, "evaluate-every": 1, "privacy.unit": "example",
    "privacy.clip-norm": 1.0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _examples(count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(1)
    return Examples(torch.randn(count, 1, 16, 16, generator=generator), torch.arange(count) % 10)


def _summary(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "summary.json").read_text())["privacy"])


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_is_along_the_mean_of_clipped_gradients(frozen: bool, ghost: bool) -> None:
    """Without noise and with everybody: each example's gradient by itself, in all trained parameters together."""
    single, network, c, rate = _examples(), build("lenet", (1, 16, 16), 10, 1).double(), 2.0, 0.1
    examples = Examples(single.x.double().to(memory_format=torch.channels_last), single.y)
    trained = list(network.parameters())[4:] if frozen else list(network.parameters())
    start = [p.detach().clone() for p in trained]
    mean = [torch.zeros_like(p) for p in trained]
    norms = []
    for x, y in zip(examples.x, examples.y, strict=True):
        gradients = torch.autograd.grad(cross_entropy(network(x[None]), y[None]), trained)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        norms.append(norm)
        for total, gradient in zip(mean, gradients, strict=True):
            total += gradient * min(1.0, c / norm) / len(examples)
    assert frozen or min(norms) < c < max(norms)
    options = settings(**{"momentum": 0.0, "batch-size": len(examples)})
    train(
        network, examples, options, torch.Generator().manual_seed(1), epochs=1, groups=[Group(trained, rate)],
        private=PrivateSteps(0.0, c, 1.0, len(examples), ghost), task=TASK
    )  # fmt: skip
    for parameter, before, step in zip(trained, start, mean, strict=True):
        torch.testing.assert_close(parameter.detach(), before - rate * step, rtol=1e-5, atol=1e-9)
    assert not any(hasattr(p, "grad_sample") and p.grad_sample is not None for p in network.parameters())
    assert not network[0][0]._forward_hooks  # the network is as it was
    assert network[1][0].weight.is_contiguous(memory_format=torch.channels_last)


class _Texts(nn.Module):
    """Reads texts of tokens, negative behind the last, and notes the shape of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 10), list[list[int]]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((x >= 0).sum(dim=1).tolist())
        outputs: torch.Tensor = self.layer(x.clamp(min=0).float().mean(dim=1, keepdim=True))
        return outputs


def test_a_private_batch_in_parts_of_similar_length_is_the_same_step() -> None:
    rng = np.random.default_rng(3)
    lengths = torch.from_numpy(rng.integers(1, 9, 14))
    x = torch.where(torch.arange(9) < lengths[:, None], torch.from_numpy(rng.integers(1, 9, (14, 9))), -1)
    found, model = [], _Texts()
    start = [parameter.detach().clone() for parameter in model.parameters()]
    for chosen in ({}, {"micro_batch": 4}, {"micro_batch": 4, "bucket": True}):
        model.seen.clear()
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), start, strict=True):
                parameter.copy_(before)
        own = settings(local_epochs=1, batch_size=14, learning_rate=0.5, **chosen)
        private = PrivateSteps(0.0, 0.5, 1.0, 14, ghost=False)
        loss = train(model, Examples(x, torch.arange(14) % 10), own, torch.Generator(), task=TASK, private=private).loss
        found.append([torch.tensor(loss), *(parameter.detach().clone() for parameter in model.parameters())])
    assert [len(part) for part in model.seen] == [4, 4, 4, 2]
    assert [length for part in model.seen for length in part] == sorted(lengths.tolist())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("taking_part", [0.0, 1.0])
def test_the_noise_of_a_step(taking_part: float, ghost: bool) -> None:
    """z·C/B in every entry, B being the expected batch; also where nobody takes part."""
    examples, z, c = _examples(20), 3.0, 0.2
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, 400))
    private = PrivateGradients(network, z, c, 1.0, len(examples), ghost=ghost)
    if taking_part:
        private.backward(
            lambda rows: cross_entropy(private.model(examples.x[rows]), examples.y[rows], reduction="none") * 1e-9,
            torch.arange(20),
        )
    private.protect()
    noise = torch.cat([p.grad.flatten() for p in network.parameters()]).double()  # type: ignore[union-attr]
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(noise))
    assert low < float((noise / (z * c / 20)).square().sum()) < high
    private.end()
    again = PrivateGradients(network, z, c, 1.0, len(examples), ghost=ghost)
    again.protect()
    assert not torch.equal(noise, torch.cat([p.grad.flatten() for p in network.parameters()]).double())  # type: ignore[union-attr]


def test_poisson_batches_have_the_configured_mean(tmp_path: Path) -> None:
    """B = 7 of n = 50 examples: the rate is B/n, not 1 over the number of batches, ⌈n/B⌉, as in Opacus' loaders."""
    examples = _examples(50)
    private = PrivateGradients(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), 1.0, 1.0, 7 / 50, len(examples))
    sizes = [len(private.batch()) for _ in range(4000)]
    deviation = math.sqrt(50 * 0.14 * 0.86 / 4000)
    assert abs(float(np.mean(sizes)) - 7) < 5 * deviation < abs(50 / 8 - 7)
    assert private._expected == 7


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("where", ["after forward", "in backward", "in the hook"])
def test_after_an_accident_the_next_client_is_not_harmed(where: str, ghost: bool) -> None:
    """All clients of a process share one network: what one leaves behind must not be in another's gradients."""

    class MishapError(Exception):
        pass

    network = build("lenet", (1, 16, 16), 10, 1).double()
    examples = Examples(_examples(20).x.double(), _examples(20).y)

    def fail(*arguments: Any) -> None:
        raise MishapError

    if where == "in backward":
        network[0][0].weight.register_hook(fail)

    def objective(rows: torch.Tensor) -> torch.Tensor:
        cross_entropy(network(examples.x), examples.y)
        raise MishapError

    options = settings(**{"momentum": 0.0, "batch-size": 20})
    with pytest.raises(MishapError):
        train(
            network, examples, options, torch.Generator().manual_seed(1), epochs=1,
            private=PrivateSteps(0.0, 1.0, 1.0, 20, ghost),
            objective=objective if where == "after forward" else None,
            gradient_hook=fail if where == "in the hook" else None, task=TASK
        )  # fmt: skip
    network[0][0].weight._backward_hooks = None  # our own
    fresh = build("lenet", (1, 16, 16), 10, 1).double()
    fresh.load_state_dict(network.state_dict())
    few = Examples(examples.x[:7], examples.y[:7])
    results = []
    for model in (network, fresh):
        private = PrivateGradients(model, 0.0, 1.0, 1.0, 7, ghost=ghost)
        private.backward(
            lambda rows, chosen=private.model: cross_entropy(chosen(few.x[rows]), few.y[rows], reduction="none"),
            torch.arange(7),
        )
        private.protect()
        results.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        private.end()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gradients", ["hooks", "ghost"])
def test_what_a_client_answers_carries_the_noise(tmp_path: Path, gradients: str) -> None:
    """After one step with z so large that gradients do not count: η·z·C/B in every parameter."""
    network, examples = build("mlp", (1, 16, 16), 10, 1), _examples()
    client = make_client(examples, network, folder=tmp_path, **{
        "model": "mlp", "local-epochs": 1, "batch-size": 6, "learning-rate": 0.5, "momentum": 0.0,
        "privacy.unit": "example", "privacy.noise-multiplier": 1e4, "privacy.clip-norm": 0.3,
        "privacy.gradients": gradients, "local-steps": 1,
    })  # fmt: skip
    start = get_arrays(network)
    answer = perform(client, "train", start)
    steps = np.concatenate([(a - start[n]).ravel() for n, a in answer.arrays.items()]).astype(np.float64)
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(steps))
    assert low < np.square(steps / (0.5 * 1e4 * 0.3 / 6)).sum() < high
    assert answer.metrics["epsilon"] == client.account.epsilon() > 0


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_an_example_that_overflows_counts_as_zero(ghost: bool, value: float) -> None:
    """The sum is that of the others, to the last bits, so that nothing tells that it is there."""
    examples, network = _examples(7), build("lenet", (1, 16, 16), 10, 1)
    examples.x[3] = value
    found = []
    for chosen in (torch.arange(7), torch.tensor([0, 1, 2, 4, 5, 6]), torch.tensor([3])):
        private = PrivateGradients(network, 0.0, 1.0, 1.0, 7, ghost=ghost)
        private.backward(
            lambda rows, model=private.model: cross_entropy(
                model(examples.x[rows]), examples.y[rows], reduction="none"
            ),
            chosen,
        )
        private.protect()
        found.append([p.grad.clone() for p in network.parameters()])  # type: ignore[union-attr]
        private.end()
    for whole, others, alone in zip(*found, strict=True):
        assert whole.isfinite().all()
        assert others.any()
        torch.testing.assert_close(whole, others, rtol=1e-4, atol=1e-6)
        assert not alone.any()


def test_a_step_without_examples_is_noise(tmp_path: Path) -> None:
    """η·z·C/B in every parameter, as where somebody takes part."""
    network, examples = nn.Sequential(nn.Flatten(), nn.Linear(256, 40)), _examples()
    start = get_arrays(network)
    options = settings(**{"momentum": 0.0, "local-steps": 1, "learning-rate": 0.5})
    train(
        network, examples, options, torch.Generator().manual_seed(1),
        private=PrivateSteps(3.0, 0.2, 0.0, len(examples)), task=TASK
    )  # fmt: skip
    steps = np.concatenate([(a - start[n]).ravel() for n, a in get_arrays(network).items()]).astype(np.float64)
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(steps))
    assert low < np.square(steps / (0.5 * 3.0 * 0.2)).sum() < high


def test_a_clients_success_depends_on_no_example(tmp_path: Path) -> None:
    """A model that overflows for one example alone: the loss is unknown, and the reply comes all the same."""
    network, examples = build("mlp", (1, 16, 16), 10, 1), _examples()
    examples.x[5] = 1e38
    client = make_client(examples, network, folder=tmp_path, **{
        "model": "mlp", "local-epochs": 1, "batch-size": 12, "privacy.unit": "example", "privacy.noise-multiplier": 1.0,
    })  # fmt: skip
    answer = perform(client, "train", get_arrays(network))
    assert answer.metrics["loss"] > 1e30  # more than may be reported
    assert all(np.isfinite(array).all() for array in answer.arrays.values())
    host: Any = SimpleNamespace(_settings=client.settings, _known={**reports_of(type(client), client.task), **COST})
    Host._check_numbers(host, answer)
    assert math.isnan(answer.metrics["loss"])


def test_noise_has_more_than_32_bits_of_seed() -> None:
    """Seeds that agree in their low bits give one and the same stream with torch on CPUs."""
    a, b = (torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7 + (5 << 32)))
    private = PrivateGradients(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 1.0, 1.0, 1.0, 4)
    assert torch.equal(a, b)
    assert not any(isinstance(value, torch.Generator) for value in vars(private).values())


TRAINED = ["fedavg", "fedprox", "fedper", "fedrep", "fedbabu", "lg-fedavg", "ditto", "local"]


@pytest.mark.parametrize("local_steps", [0, 3])
@pytest.mark.parametrize("method", mostly_long(TRAINED, "fedavg", "ditto"))
def test_as_many_steps_are_planned_as_are_taken(run: Runs, method: str, local_steps: int) -> None:
    keys: dict[str, Value] = {"participation": 1.0, "rounds": 2, "evaluate-every": 1, "local-steps": local_steps}
    keys |= {"finetune-epochs": 1} if method in ("fedavg", "fedbabu") else {}
    path = run("run", **keys, **{"privacy.noise-multiplier": 1.0}, method=method)
    taken = Account(path / "clients" / "0" / "privacy.json", 1e-5).history
    options, hyper = parse(read_config(path))
    data = simulated(*federate(options), 0)
    network = build("mlp", (1, 8, 8), 10, 1)
    state = ClientState(path / "clients" / "0", 2, [], 2, "0")
    client = METHODS[method].client_class()("0", data, network, get_arrays(network), state, options, hyper, Work(2))
    ((_, rate, steps),), _ = client.planned(2.0, 2.0)
    assert taken == [(1.0, rate, steps)]


def test_examples_take_part_by_chance() -> None:
    private = PrivateGradients(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), 1.0, 1.0, 0.25, 40)
    batches = [private.batch() for _ in range(2000)]
    counts = torch.bincount(torch.cat(batches), minlength=40)
    assert ((counts / 2000 - 0.25).abs() < 0.06).all()  # six deviations
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    assert float(sizes.var()) == pytest.approx(40 * 0.25 * 0.75, rel=0.2)


def test_the_account_is_opacus_and_lasts(tmp_path: Path) -> None:
    account = Account(tmp_path / "privacy.json", 1e-5)
    assert account.epsilon() == 0
    for z, q, steps in ((1.1, 0.1, 30), (1.1, 0.1, 10), (2.0, 0.2, 5)):
        account.add(z, q, steps)
    theirs = RDPAccountant()
    theirs.history = [(1.1, 0.1, 40), (2.0, 0.2, 5)]
    again = Account(tmp_path / "privacy.json", 1e-5)
    assert again.history == theirs.history
    assert again.epsilon() == account.epsilon() == pytest.approx(theirs.get_epsilon(1e-5))
    assert again.epsilon((1.1, 0.1, 10)) > again.epsilon()
    z = multiplier_for(4.0, 1e-5, ((1.0, 0.1, 100),))
    theirs.history = [(z, 0.1, 100)]
    assert 3.9 < theirs.get_epsilon(1e-5) <= 4.0
    assert z == pytest.approx(
        get_noise_multiplier(target_epsilon=4.0, target_delta=1e-5, sample_rate=0.1, steps=100, accountant="rdp"),
        rel=0.02,
    )
    z = multiplier_for(4.0, 1e-5, ((1.0, 0.1, 100), (0.7, 1.0, 2)), ((10.0, 1.0, 4),))
    theirs.history = [(z, 0.1, 100), (0.7 * z, 1.0, 2), (10.0, 1.0, 4)]
    assert 3.9 < theirs.get_epsilon(1e-5) <= 4.0
    with pytest.raises(RunError, match="no amount of noise keeps the cost of what is released below"):
        multiplier_for(0.1, 1e-5, ((1.0, 0.1, 100),), ((1.0, 1.0, 4),))


@pytest.mark.parametrize("method", mostly_long(TRAINED, "fedavg"))
def test_methods_keep_their_clients_budgets(run: Runs, method: str) -> None:
    keys: dict[str, Value] = {"participation": 1.0, "privacy.epsilon": 6.0, "rounds": 2}
    keys |= {"finetune-epochs": 1} if method in ("fedavg", "fedbabu") else {}
    path = run("run", **keys, method=method)
    found = _summary(path)
    assert found["unit"] == "example"
    slack = 0.85 if method == "fedrep" else 0.97  # whose heads train on fewer clients' tests than were planned
    assert slack * 6 < found["epsilon_max"] <= 6
    with (path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert max(float(row["epsilon"]) for row in rows) == pytest.approx(found["epsilon_max"])
    accounts = [Account(path / "clients" / row["client"] / "privacy.json", 1e-5) for row in rows]
    theirs = RDPAccountant()
    theirs.history = accounts[0].history
    assert theirs.get_epsilon(1e-5) == pytest.approx(float(rows[0]["epsilon"]))


def test_who_trains_more_spends_more(run: Runs) -> None:
    keys: dict[str, Value] = {"privacy.noise-multiplier": 1.0, "rounds": 4, "participation": 0.25, "partitioner": "iid"}
    path = run("run", **keys)
    with (path / "clients.csv").open() as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
    asked = [c for m in run.grid.sent if m.metadata.message_type == "train" for c in m.content["config"]["clients"]]
    times = [asked.count(str(i)) for i in range(4)]
    assert len(set(times)) > 1
    assert np.argsort(spent, stable=True).tolist() == np.argsort(times, stable=True).tolist()  # sizes differ by one
    assert [value > 0 for value in spent] == [count > 0 for count in times]


def test_a_spent_budget_ends_contributions(run: Runs) -> None:
    keys: dict[str, Value] = {"participation": 1.0, "privacy.epsilon": 6.0}
    first = run("run", **keys, rounds=2)
    before = _summary(first)["epsilon_max"]
    model = read_checkpoint(first).arrays
    again = run("run", resume="run", **keys, rounds=4)
    found = _summary(again)
    assert (found["clients_spent"], found["epsilon_max"]) == (4, before)
    assert read_checkpoint(again).round == 3  # which changes nothing, and is the last
    assert all(np.array_equal(array, model[name]) for name, array in read_checkpoint(again).arrays.items())
    assert Account(first / "clients" / "0" / "privacy.json", 1e-5).epsilon() <= before


def test_who_has_spent_its_budget_is_not_asked_again(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on without it, and it is tested with what it has: without fine-tuning."""
    honest = FedAvgClient.noise_multiplier

    def less(client: FedAvgClient) -> float:
        return honest(client) * (0.87 if client.client_id == "2" else 1.0)

    monkeypatch.setattr(FedAvgClient, "noise_multiplier", less)
    keys: dict[str, Value] = {"participation": 1.0, "privacy.epsilon": 6.0, "rounds": 4, "evaluate-every": 0}
    path = run("run", **keys, **{"min-success": 1.0, "finetune-epochs": 1})
    asked = [[*m.content["config"]["clients"]] for m in run.grid.sent if m.metadata.message_type == "train"]
    times = {client: sum(client in clients for clients in asked) for client in "0123"}
    assert times["0"] == times["1"] == times["3"] == 4
    assert 1 < times["2"] < 4
    found = _summary(path)
    assert found["clients_spent"] == 1
    assert found["epsilon_max"] <= 6
    with (path / "clients.csv").open() as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    assert rows["2"]["accuracy"] == rows["2"]["accuracy_global"]
    assert any(rows[client]["accuracy"] != rows[client]["accuracy_global"] for client in "013")


@pytest.mark.long
def test_ppfe_with_private_examples(run: Runs) -> None:
    """A client's coefficients are made of noisy sums, one for each stage, which its account has."""
    keys: dict[str, Value] = {
        "method": "ppfe", "participation": 1.0, "rounds": 2, "ppfe.personal-blocks": "0,1",
        "ppfe.stage-rounds": "1,1", "ppfe.ranks": "", "ppfe.min-error": 0.001, "privacy.epsilon": 6.0,
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"set ppfe\.reweighting to false"):
        run("refused", **keys)
    path = run("run", **keys, **{"ppfe.reweighting": False})
    account = Account(path / "clients" / "0" / "privacy.json", 1e-5)
    assert (SUM_MULTIPLIER, 1.0, 2) in account.history
    assert 0.97 * 6 < account.epsilon() <= 6


def test_a_sum_over_examples_gets_the_stated_noise(tmp_path: Path) -> None:
    client = make_client(_examples(), build("mlp", (1, 16, 16), 10, 1), folder=tmp_path, **{
        "privacy.unit": "example", "privacy.noise-multiplier": 1.0,
    })  # fmt: skip
    noise = np.array([client.released(7.0) - 7 for _ in range(300)])
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(noise))
    assert low < np.square(noise / SUM_MULTIPLIER).sum() < high
    assert client.account.history == [(SUM_MULTIPLIER, 1.0, 300)]
    plain = make_client(_examples(), build("mlp", (1, 16, 16), 10, 1), folder=tmp_path)
    assert plain.released(7.0) == 7


def test_a_resumed_run_has_cost_the_same(run: Runs) -> None:
    """Also of clients that nobody asks any more: their costs are in the checkpoint."""
    keys: dict[str, Value] = {"privacy.noise-multiplier": 1.0, "participation": 0.25, "evaluate-clients": 1}
    whole, broken = run.whole_and_broken(3, **keys)
    assert _summary(whole) == _summary(broken)
    assert _summary(whole)["clients"] > 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "pefll", "pefll.mask-labels": True}, "pefll.mask-labels tells which classes"),
        ({"method": "knn-per"}, "'example' is not supported by method 'knn-per'"),
        ({"method": "scaffold"}, "is not supported by method 'scaffold'"),
        ({"model": "cnn-bn"}, "model: 'cnn-bn' does not go with"),
        ({"privacy.noise-multiplier": 0.0}, "needs a finite privacy.clip-norm"),
        ({"finetune-epochs": 1, "finetune-bn": "batch"}, "finetune-bn"),
        ({"validation-fraction": 0.2}, "validation-fraction"),
        ({"dataset": "shakespeare", "model": "char-lstm", "partitioner": "natural"}, "model = 'char-lstm'"),
        ({"method": "fedprox", "fedprox.adaptive": True}, "fedprox.adaptive"),
    ],
)
def test_what_is_refused(run: Runs, keys: dict[str, Value], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run("refused", **{"privacy.noise-multiplier": 1.0, **keys})


def test_the_search_for_a_multiplier_does_not_warn_of_those_it_tries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert multiplier_for(8.0, 1e-5, ((1.0, 0.13, 8),)) > 0
