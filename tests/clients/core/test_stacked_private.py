"""DP-SGD of several clients at once, against the same clients one after the other, with the same draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.clients.core.stacked_private import request
from florilegium.clients.core.together import Company
from florilegium.clients.core.training import Group, pull_towards, train
from florilegium.models.networks import build
from florilegium.partitions.clientdata import Examples
from florilegium.privacy import steps
from florilegium.privacy.steps import PrivateSteps
from tests.support import TASK, settings

SIZES = (23, 9, 30, 1, 14)
Options = Callable[[nn.Module, int], dict[str, Any]]
CASES: dict[str, tuple[dict[str, Any], Options]] = {
    "momentum, decay of weights": ({"momentum": 0.9, "weight_decay": 0.1}, lambda m, c: {}),
    "steps": ({"local_steps": 5}, lambda m, c: {}),
    "own numbers of epochs": ({}, lambda m, c: {"epochs": 1 + c}),
    "weighted": ({}, lambda m, c: {"weights": torch.linspace(0.1, 2, SIZES[c])}),
    "pulled, and bounded": (
        {"max_grad_norm": 0.05},
        lambda m, c: {"gradient_hook": pull_towards([p.detach() + 0.1 * c for p in m.parameters()], 0.5)},
    ),
    "the first layer frozen": (
        {},
        lambda m, c: {"groups": [Group(list(m[2].parameters()), 0.1), Group(list(m[1].parameters())[-1:], 0.02)]},  # type: ignore[index]
    ),
    "one part of several positions": ({}, lambda m, c: {}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the n-th training draw the n-th stream, alone and together."""
    made: list[int] = []

    def generator() -> np.random.Generator:
        made.append(len(made))
        return np.random.default_rng(made[-1] % len(SIZES))

    monkeypatch.setattr(steps, "secret_generator", generator)
    return made


def _network(case: str) -> nn.Sequential:
    torch.manual_seed(1)
    if case.endswith("positions"):
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2), nn.Flatten(), nn.Linear(8, 3))
    return build("mlp", (1, 4, 4), 3, 1)


def _examples(client: int, case: str) -> Examples:
    generator = torch.Generator().manual_seed(client)
    shape = (4, 4) if case.endswith("positions") else (1, 4, 4)
    x = torch.randn(SIZES[client], *shape, generator=generator)
    return Examples(x, torch.randint(0, 3, (SIZES[client],), generator=generator))


def _work(network: nn.Sequential, case: str, noise: float, start: Sequence[torch.Tensor], client: int) -> list[Any]:
    keys, options = CASES[case]
    with torch.no_grad():
        for parameter, own in zip(network.parameters(), start, strict=True):
            parameter.copy_(own + 0.1 * client)
    examples, s = _examples(client, case), settings(batch_size=10, local_epochs=2, **keys)
    private = PrivateSteps(noise * (1 + client), 0.3, min(1.0, 10 / len(examples)), len(examples))
    more = options(network, client)
    trained = train(network, examples, s, torch.Generator().manual_seed(9), private=private, task=TASK, **more)
    return [trained, *(parameter.detach().clone() for parameter in network.parameters())]


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_together_is_one_by_one_up_to_rounding(
    case: str, noise: float, draws: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """With most steps first: this is the order in which clients that train together draw their streams."""
    network = _network(case)
    start = [parameter.detach().clone() for parameter in network.parameters()]
    longest = sorted(range(len(SIZES)), key=lambda c: -(1 + c if case.startswith("own") else 2) * -(-SIZES[c] // 10))
    clients = [*range(len(SIZES))] if case == "steps" else longest
    tasks = [partial(_work, network, case, noise, start, client) for client in clients]
    together = Company(network, {"train": request}).run(tasks)
    assert len(draws) == len(SIZES)
    assert not caplog.text
    alone = [task() for task in tasks]
    assert len(draws) == 2 * len(SIZES)
    for found, expected in zip(together, alone, strict=True):
        assert not isinstance(found, Exception)
        assert found[0].gradient_norm is None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


def test_an_example_without_a_finite_gradient_counts_for_nothing_and_for_no_other_client() -> None:
    network = build("mlp", (1, 4, 4), 3, 1)
    start = [parameter.detach().clone() for parameter in network.parameters()]

    def work(client: int, *, spoiled: bool) -> list[torch.Tensor]:
        with torch.no_grad():
            for parameter, own in zip(network.parameters(), start, strict=True):
                parameter.copy_(own)
        x, y = _examples(client, "").x[:8], _examples(client, "").y[:8]
        if spoiled and client == 0:
            x[3] = float("inf")
        examples, private = Examples(x, y), PrivateSteps(0.0, 0.3, 1.0, 8)
        train(network, examples, settings(batch_size=8), torch.Generator(), private=private, task=TASK)
        return [parameter.detach().clone() for parameter in network.parameters()]

    def without() -> list[torch.Tensor]:
        with torch.no_grad():
            for parameter, own in zip(network.parameters(), start, strict=True):
                parameter.copy_(own)
        rest = _examples(0, "").rows(torch.tensor([0, 1, 2, 4, 5, 6, 7]))
        private = PrivateSteps(0.0, 0.3, 8 / 7, 7)  # divided by 8, as before
        train(network, rest, settings(batch_size=7), torch.Generator(), private=private, task=TASK)
        return [parameter.detach().clone() for parameter in network.parameters()]

    company = Company(network, {"train": request})
    spoiled = company.run([partial(work, client, spoiled=True) for client in (0, 1, 2)])
    sound = company.run([partial(work, client, spoiled=False) for client in (0, 1, 2)])
    torch.testing.assert_close(spoiled[0], without(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(spoiled[1:], sound[1:], rtol=0, atol=0)


def test_noise_of_clients_is_independent_and_as_large_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without examples in any batch a step is noise alone, of standard deviation z·C ÷ the expected batch."""
    seeds = iter(range(100))
    monkeypatch.setattr(steps, "secret_generator", lambda: np.random.default_rng(next(seeds)))
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, 40))
    start = [parameter.detach().clone() for parameter in network.parameters()]

    def work() -> np.ndarray[Any, np.dtype[np.float32]]:
        with torch.no_grad():
            for parameter, own in zip(network.parameters(), start, strict=True):
                parameter.copy_(own)
        examples = Examples(torch.randn(5, 1, 16, 16), torch.zeros(5, dtype=torch.int64))
        s = settings(batch_size=5, local_epochs=1, learning_rate=1.0, momentum=0.0)
        train(network, examples, s, torch.Generator(), private=PrivateSteps(3.0, 0.2, 0.0, 5), task=TASK)
        changes = zip(network.parameters(), start, strict=True)
        return np.concatenate([(parameter.detach() - own).flatten().numpy() for parameter, own in changes])

    noise = Company(network, {"train": request}).run([work] * 4)
    assert all(isinstance(own, np.ndarray) for own in noise)
    found = np.corrcoef(np.stack(noise))  # type: ignore[arg-type]
    assert np.abs(found - np.eye(4)).max() < 5 / np.sqrt(len(noise[0]))  # type: ignore[arg-type]
    assert [np.std(own) for own in noise] == pytest.approx([0.6] * 4, rel=0.03)  # type: ignore[arg-type]


def test_what_is_not_dense_or_not_plain_is_trained_alone() -> None:
    examples, generator = _examples(0, ""), torch.Generator()
    private, s = PrivateSteps(1.0, 1.0, 0.5, len(examples)), settings()
    dense, tied = build("mlp", (1, 4, 4), 3, 1), nn.Linear(16, 16)
    shared = nn.Sequential(nn.Flatten(), tied, nn.Tanh(), tied, nn.Linear(16, 3))
    assert request(dense, examples, s, generator, task=TASK, private=private) is not None
    assert request(shared, examples, s, generator, task=TASK, private=private) is None
    assert request(build("lenet", (1, 28, 28), 3, 1), examples, s, generator, task=TASK, private=private) is None
    assert request(dense, examples, s, generator, task=TASK, private=private, objective=lambda rows: rows) is None
