"""Several clients at once, against the same clients one after the other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from florilegium.clients.core import stacked_examples
from florilegium.clients.core.stacked_evaluation import Evaluation, Features
from florilegium.clients.core.stacked_private import request
from florilegium.clients.core.together import Company
from florilegium.clients.core.training import Correction, Group, evaluate, features, pull_towards, train
from florilegium.models.blocks import cut
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.models.stacked import StackedNetwork, stacked
from florilegium.partitions.clientdata import Examples
from tests.support import TASK, settings

SIZES = (23, 9, 30, 1, 10)
"""Numbers of examples: with batches of ten, last batches of 3, 9, 10, 1 and 10."""
KINDS = {"train": request, "features": Features.of, "evaluate": Evaluation.of}


def _examples(client: int) -> Examples:
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(SIZES[client], 1, 4, 4, generator=generator)
    return Examples(x, torch.randint(0, 3, (SIZES[client],), generator=generator))


def _network() -> nn.Sequential:
    return build("mlp", (1, 4, 4), 3, 1)


def _begin(network: nn.Module, client: int) -> None:
    """Give the network contents that are this client's alone."""
    generator = torch.Generator().manual_seed(100 + client)
    set_arrays(network, {n: a + 0.1 * torch.randn(a.shape, generator=generator).numpy() for n, a in START.items()})


START = get_arrays(_network())


def _anchors(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


Options = Callable[[nn.Module, int], dict[str, Any]]
CASES: dict[str, tuple[dict[str, Any], Options]] = {
    "momentum, decay of weights": ({"momentum": 0.9, "weight_decay": 0.1}, lambda m, c: {}),
    "Adam": ({"optimizer": "adam", "learning_rate": 0.01}, lambda m, c: {}),
    "clipped": ({"max_grad_norm": 0.3}, lambda m, c: {}),
    "shorter than the bound": ({"max_grad_norm": 50.0}, lambda m, c: {}),
    "steps": ({"local_steps": 5}, lambda m, c: {}),
    "own numbers of epochs": ({}, lambda m, c: {"epochs": 1 + c}),
    "weighted": ({}, lambda m, c: {"weights": torch.linspace(0.1, 2, SIZES[c])}),
    "pulled": ({}, lambda m, c: {"gradient_hook": pull_towards([p + 0.1 * c for p in _anchors(m)], 0.5)}),
    "shifted": ({}, lambda m, c: {"gradient_hook": Correction(shifts=[0.1 * c * p for p in _anchors(m)])}),
    "two groups, one part frozen": (
        {"momentum": 0.5},
        lambda m, c: {
            "groups": [Group(list(m[1].parameters()), 0.1), Group(list(m[2].parameters()), 0.02, decays=False)],  # type: ignore[index]
            "decay": 0.5,
        },
    ),
}  # fmt: skip


def _work(network: nn.Sequential, keys: dict[str, Any], options: Options, client: int) -> list[Any]:
    """Do what a client may do: train, evaluate, train the head alone on features; return all results."""
    _begin(network, client)
    examples, s = _examples(client), settings(batch_size=10, local_epochs=2, **keys)
    loss = train(network, examples, s, torch.Generator().manual_seed(client), **options(network, client), task=TASK)
    tested = evaluate(network, _examples(client), task=TASK)
    body, head = cut(network, ["fc3"])
    inner = Examples(features(body, examples), examples.y)
    tuned = train(head, inner, s, torch.Generator().manual_seed(client), epochs=1, task=TASK)
    return [loss, tested, tuned, *map(torch.from_numpy, get_arrays(network).values())]


def _one_by_one(tasks: Sequence[Callable[[], list[Any]]]) -> Iterator[list[Any]]:
    for task in tasks:
        yield task()


@pytest.mark.parametrize("case", CASES)
def test_together_is_one_by_one_up_to_rounding(case: str, caplog: pytest.LogCaptureFixture) -> None:
    network, (keys, options) = _network(), CASES[case]
    tasks = [partial(_work, network, keys, options, client) for client in range(len(SIZES))]
    together = Company(network, KINDS).run(tasks)
    assert not caplog.text  # no work has failed together, and was done alone
    for alone, found in zip(_one_by_one(tasks), together, strict=True):
        assert not isinstance(found, Exception)
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=2e-6)


def _residual() -> nn.Sequential:
    return nn.Sequential(BasicBlock(1, 1), nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize("sizes", [(20, 20, 20), (23, 9, 30, 12), (21, 30, 10)], ids=["full", "filled up", "lone"])
def test_batch_norm_of_each_client_is_its_own(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lone last example joins the batch before; its client trains alone."""
    monkeypatch.setattr(stacked_examples, "stacked", lambda network, *, gpu, norms: stacked(network, norms=norms))
    network, calls = _residual(), list[int]()
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    forward = StackedNetwork.__call__
    monkeypatch.setattr(StackedNetwork, "__call__", lambda self, *a: (calls.append(len(a[1])), forward(self, *a))[1])

    def work(client: int) -> list[Any]:
        network.load_state_dict({n: t + 0.1 * client if t.is_floating_point() else t for n, t in start.items()})
        generator = torch.Generator().manual_seed(client)
        x, y = torch.randn(sizes[client], 1, 4, 4, generator=generator), torch.arange(sizes[client]) % 3
        keys = settings(batch_size=10, local_epochs=1 + client, learning_rate=0.05, momentum=0.5)
        trained = train(network, Examples(x, y), keys, generator, task=TASK)
        tested = evaluate(network, Examples(x, y), task=TASK)
        return [trained, tested, *(tensor.clone() for tensor in network.state_dict().values())]

    tasks = [partial(work, client) for client in range(len(sizes))]
    together = Company(network, KINDS).run(tasks)
    assert not caplog.text
    assert max(calls) == len([size for size in sizes if size % 10 != 1])
    for alone, found in zip(_one_by_one(tasks), together, strict=True):
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_the_same_model_is_evaluated_on_all_examples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = _network()
    tasks = [
        partial(lambda client: evaluate(network, _examples(client), task=TASK), client) for client in range(len(SIZES))
    ]
    alone = [task() for task in tasks]
    monkeypatch.setattr(StackedNetwork, "__call__", None)  # the models need not be stacked
    # Sums of n positive float32 terms in two orders differ by 2n roundings of 2⁻²⁴ at most, and logits by a few more.
    torch.testing.assert_close(Company(network, KINDS).run(tasks), alone, rtol=2 * (max(SIZES) + 64) * 2**-24, atol=0)


def test_a_clients_not_a_number_and_errors_are_its_own() -> None:
    network = _network()

    def work(client: int, spoiled: int | None) -> list[Any]:
        _begin(network, client)
        examples = _examples(client)
        if client == spoiled:
            examples.x.fill_(float("nan"))
        train(network, examples, settings(batch_size=10), torch.Generator().manual_seed(client), task=TASK)
        if client == 1:
            raise ValueError("its own")
        return [torch.from_numpy(a) for a in get_arrays(network).values()]

    company = Company(network, KINDS)
    sound, spoiled = (company.run([partial(work, c, s) for c in range(len(SIZES))]) for s in (None, 0))
    assert isinstance(spoiled[1], ValueError)
    assert not isinstance(spoiled[0], Exception)
    assert all(tensor.isnan().all() for tensor in spoiled[0])
    for client in (2, 3, 4):
        torch.testing.assert_close(spoiled[client], sound[client], rtol=0, atol=0)


def test_work_that_fails_together_is_done_alone() -> None:
    """A class that the network does not have stops the training of all; only its client has to pay for it."""
    network = _network()

    def work(client: int, wrong: int | None) -> list[Any]:
        _begin(network, client)
        examples = _examples(client)
        if client == wrong:
            examples.y[0] = 99
        generator = torch.Generator().manual_seed(client)
        found = train(network, examples, settings(batch_size=10), generator, task=TASK)
        return [found, torch.rand((), generator=generator), *map(torch.from_numpy, get_arrays(network).values())]

    found = Company(network, KINDS).run([partial(work, client, 1) for client in range(len(SIZES))])
    assert isinstance(found[1], IndexError)
    for client in (0, 2, 3, 4):
        torch.testing.assert_close(found[client], work(client, None), rtol=0, atol=0)


def test_what_clients_share_is_each_clients_own() -> None:
    network = _network()

    def work(client: int) -> tuple[Any, ...]:
        torch.manual_seed(client)
        network[0].requires_grad_(client == 0)
        torch.set_grad_enabled(client != 1)
        evaluate(network, _examples(client), task=TASK)
        modes = {module.training for module in network.modules()}
        return torch.rand(()).item(), network[0][1].weight.requires_grad, torch.is_grad_enabled(), modes

    state, flags = torch.default_generator.get_state(), torch.is_grad_enabled()
    expected = []
    for client in range(3):
        torch.manual_seed(client)
        expected.append((torch.rand(()).item(), client == 0, client != 1, {False}))
    torch.default_generator.set_state(state)
    assert Company(network, KINDS).run([partial(work, client) for client in range(3)]) == expected
    assert torch.is_grad_enabled() == flags
    assert torch.equal(torch.default_generator.get_state(), state)


def test_what_cannot_be_stacked_is_done_alone() -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
    start = get_arrays(network)

    def work(client: int) -> list[Any]:
        set_arrays(network, start)
        loss = train(
            network, _examples(client), settings(batch_size=5), torch.Generator().manual_seed(client), task=TASK
        )
        return [
            loss,
            *evaluate(network, _examples(client), task=TASK).values(),
            *map(torch.from_numpy, get_arrays(network).values()),
        ]

    tasks = [partial(work, client) for client in (0, 1, 2)]
    torch.testing.assert_close(Company(network, KINDS).run(tasks), [*_one_by_one(tasks)], rtol=0, atol=0)


def test_coroutines_keep_nothing_of_a_company_that_is_gone() -> None:
    network = _network()
    company, gone = Company(network, KINDS), weakref.ref(network)
    company.run([partial(evaluate, network, _examples(client)) for client in (0, 1)])
    del company, network
    gc.collect()
    assert gone() is None
