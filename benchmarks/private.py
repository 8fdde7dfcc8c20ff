"""Cost of privacy: rounds with client-level privacy against rounds without, and DP-SGD against plain Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import suite
from benchmarks.timing import alternate
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.stacked_private import request
from florilegium.clients.core.together import Company
from florilegium.clients.core.training import train
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of
from florilegium.privacy.steps import PrivateSteps

SHAPE, EXAMPLES, BATCH = (3, 32, 32), 600, 50
REPEATS = 7


def client_level(rounds: int, workers: int) -> tuple[float, float]:
    """Return the median seconds of a round with and without client-level privacy, in runs that alternate."""
    seconds: dict[str, list[float]] = {"client": [], "none": []}
    for _ in range(3):
        for unit, measured in seconds.items():
            keys: dict[str, Value] = {"weighting": "uniform", "privacy.unit": unit, "privacy.sampling": "fixed"}
            # A small clip norm keeps the noise small, so that the model does not diverge.
            keys |= {"privacy.noise-multiplier": 1.0, "privacy.clip-norm": 0.01} if unit == "client" else {}
            measured.append(suite.seconds_per_round("lenet", rounds, workers, **keys))
    private, plain = (float(np.median(measured)) for measured in seconds.values())
    return private, plain


def dp_sgd(model: str) -> dict[str, float]:
    """Return the median seconds of an epoch on one core: DP-SGD by the "suite" and bare "opacus", and "plain" SGD."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(EXAMPLES, *SHAPE, generator=generator), torch.randint(10, (EXAMPLES,), generator=generator)
    network = build(model, SHAPE, 10, 1)
    epochs = {"suite": _ours(network, x, y, private=True), "opacus": _bare(model, x, y)}
    epochs["plain"] = _ours(network, x, y, private=False)
    return alternate(epochs, REPEATS)


def of_many(clients: int) -> dict[str, float]:
    """Return the median seconds of an epoch of so many small clients with an `mlp`, as :func:`dp_sgd`.

    Each has a network of its own, 60 examples of 8×8 pixels and batches of 20. The suite trains all at once
    (``vectorise``); Opacus is attached to each beforehand.
    """
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(60, 1, 8, 8, generator=generator), torch.randint(10, (60,), generator=generator)
    network = build("mlp", (1, 8, 8), 10, 1)
    company = Company(network, {"train": request})

    def suite(*, private: bool) -> Callable[[], object]:
        task = _ours(network, x, y, private=private, batch=20)
        return lambda: company.run([task] * clients)

    bare = [_bare("mlp", x, y, batch=20) for _ in range(clients)]
    return alternate({
        "suite": suite(private=True),
        "opacus": lambda: [epoch() for epoch in bare],
        "plain": suite(private=False),
    }, 3)  # fmt: skip


@cache
def _settings(batch: int) -> ClientSettings:
    return parse({**defaults(), "batch-size": batch, "learning-rate": 0.01, "momentum": 0.0})[0]


def _ours(
    network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, *, private: bool, batch: int = BATCH
) -> Callable[[], object]:
    settings = _settings(batch)
    examples = Examples(x.to(memory_format=torch.channels_last), y)
    generator, task = torch.Generator().manual_seed(1), task_of(settings)
    steps = PrivateSteps(1.0, 1.0, batch / len(x), len(x)) if private else None
    return lambda: train(network, examples, settings, generator, task=task, epochs=1, private=steps)


def _bare(model: str, x: torch.Tensor, y: torch.Tensor, batch: int = BATCH) -> Callable[[], object]:
    """Return a function that trains one epoch with Opacus as in its documentation."""
    network = build(model, tuple(x.shape[1:]), 10, 1).to(memory_format=torch.contiguous_format).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its noise is not cryptographically secure
        private, optimizer, loader = PrivacyEngine().make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.01),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )

    def epoch() -> None:
        for inputs, classes in loader:
            optimizer.zero_grad()
            cross_entropy(private(inputs), classes).backward()
            optimizer.step()

    return epoch
