"""Synthetic data: linear regression where each client's weights have a common and a personal part (PPFE, section 6.1).

Client k has inputs x ~ N(0, Σ_k) and targets y = W_kᵀx + ε with W_k = (1 − r_k) W_g + r_k W_l^(k) (equations 15, 16).
The paper does not state sizes and distributions. Ours are d = 100, W_g ~ N(0, I/d), W_l^(k) ~ N(0, α_k I/d) with
α_k ~ U(0.5, 1.5), noise of standard deviation 0.5, and Σ_k a Wishart matrix with 2d degrees of freedom and mean I. All
are drawn from the run's seed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.settings import FederationSettings, ratio_range
from florilegium.partitions.spec import Dataset, DatasetSpec, Split

NOISE = 0.5
"""Standard deviation σ_ε of the noise ε."""
TEST_EXAMPLES = 400
"""Number of test examples of each client."""


def linear(settings: FederationSettings, spec: DatasetSpec) -> Dataset:
    """Draw ``num-clients`` clients with ``samples-per-client`` training examples each; column ``client`` names them.

    Raises:
        ConfigurationError: if ``num-clients`` or ``samples-per-client`` is 0, or ``partitioner`` is not "natural".
    """
    clients, samples = settings.num_clients, settings.samples_per_client
    if not clients or not samples or settings.partitioner != "natural":
        raise ConfigurationError(
            f"dataset: '{spec.name}' makes clients of its own: it needs partitioner = \"natural\" (found: "
            f"{settings.partitioner!r}), num-clients (found: {clients}) and samples-per-client (found: {samples}) ≥ 1"
        )
    parts = [_client(settings, spec.shape[0], client, samples) for client in range(clients)]
    train, test = (
        Split(
            np.concatenate([part[which][0] for part in parts]),
            np.concatenate([part[which][1] for part in parts]),
            {"client": np.repeat([f"{client:06d}" for client in range(clients)], len(parts[0][which][1]))},
        )
        for which in (0, 1)
    )
    return Dataset(spec, train, test, "made")


Rows = tuple[NDArray[np.float32], NDArray[np.float32]]


def weights(settings: FederationSettings, d: int, client: int) -> NDArray[np.float64]:
    """Return the true regression weights W_k, (d,), of a client."""
    shared = numpy_generator(settings.seed, "synthetic", "shared").normal(size=d)  # √d·W_g
    rng = numpy_generator(settings.seed, "synthetic", "weights", client)
    low, high = ratio_range(settings.personalisation_ratio)
    ratio, alpha = rng.uniform(low, high), rng.uniform(0.5, 1.5)  # r_k, α_k
    result: NDArray[np.float64] = ((1 - ratio) * shared + ratio * np.sqrt(alpha) * rng.normal(size=d)) / np.sqrt(d)
    return result


def _client(settings: FederationSettings, d: int, client: int, samples: int) -> tuple[Rows, Rows]:
    """Draw the training and the test examples (inputs, targets) of a client."""
    w = weights(settings, d, client)
    rng = numpy_generator(settings.seed, "synthetic", "examples", client)
    root = rng.normal(size=(d, 2 * d)) / np.sqrt(2 * d)  # Σ_k = root·rootᵀ

    def draw(count: int) -> Rows:
        x = rng.normal(size=(count, 2 * d)) @ root.T
        y = x @ w + rng.normal(scale=NOISE, size=count)
        return x.astype(np.float32), y.astype(np.float32)

    return draw(samples), draw(TEST_EXAMPLES)
