"""Cost of privacy: rounds with client-level privacy against rounds without, and DP-SGD against plain Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import suite
from benchmarks.timing import alternate
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.training import train
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of
from florilegium.privacy.dp_sgd import PrivateGradients

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
    """Return the median seconds of an epoch of DP-SGD on one core: ours by "hooks" and "ghost", and plain "opacus"."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(EXAMPLES, *SHAPE, generator=generator), torch.randint(10, (EXAMPLES,), generator=generator)
    epochs = {"hooks": _ours(model, x, y, ghost=False), "ghost": _ours(model, x, y, ghost=True)}
    epochs["opacus"] = _bare(model, x, y)
    return alternate(epochs, REPEATS)


def _ours(model: str, x: torch.Tensor, y: torch.Tensor, *, ghost: bool) -> Callable[[], object]:
    settings, _ = parse({**defaults(), "batch-size": BATCH, "learning-rate": 0.01, "momentum": 0.0})
    examples = Examples(x.to(memory_format=torch.channels_last), y)
    network, generator = build(model, SHAPE, 10, 1), torch.Generator().manual_seed(1)

    def private(network: torch.nn.Module) -> PrivateGradients:
        return PrivateGradients(network, 1.0, 1.0, BATCH / EXAMPLES, EXAMPLES, ghost=ghost)

    task = task_of(settings)
    return lambda: train(network, examples, settings, generator, task=task, epochs=1, private=private)


def _bare(model: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return a function that trains one epoch with Opacus as in its documentation."""
    network = build(model, SHAPE, 10, 1).to(memory_format=torch.contiguous_format).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its noise is not cryptographically secure
        private, optimizer, loader = PrivacyEngine().make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.01),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )

    def epoch() -> None:
        for inputs, classes in loader:
            optimizer.zero_grad()
            cross_entropy(private(inputs), classes).backward()
            optimizer.step()

    return epoch
