"""Synthetic data: a mixture of ten Gaussians in a hundred dimensions (Scott, thesis, D.7.1).

Means are uniform in [0, 1]^d, covariances 0.5·I, weights equal. The label is the component. The server holds
``server-examples`` points of the mixture, the same number from each component, and ``server-ood-examples`` points
uniform in [0, 1]^d. With ``server-missing`` = u it has no points of the last u components.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import Dataset, DatasetSpec, Split

Labels = NDArray[np.int64]

VARIANCE = 0.5
"""Variance of every component in every direction."""
TEST_SHARE = 10
"""Number of training points per test point."""


def mixture(settings: FederationSettings, spec: DatasetSpec) -> Dataset:
    """Draw ``num-clients`` × ``samples-per-client`` training points, test points, and the server's points.

    Raises:
        ConfigurationError: if one of these keys is 0, or ``server-examples`` cannot be divided equally.
    """
    clients, samples = settings.num_clients, settings.samples_per_client
    if not clients or not samples:
        raise ConfigurationError(
            f"dataset: '{spec.name}' is generated from the settings: it needs num-clients (found: {clients}) and "
            f"samples-per-client (found: {samples}) ≥ 1"
        )
    (d,), components = spec.shape, spec.classes
    seed = settings.seed
    means = numpy_generator(seed, "mixture", "means").uniform(size=(components, d))

    def draw(labels: Labels, purpose: str) -> Split:
        x = numpy_generator(seed, "mixture", purpose).standard_normal((len(labels), d), dtype=np.float32)
        x *= np.sqrt(np.float32(VARIANCE))
        x += means[labels].astype(np.float32)
        return Split(x, labels, {})

    def labels(count: int, purpose: str) -> Labels:
        return numpy_generator(seed, "mixture", purpose, "components").integers(components, size=count)

    train = draw(labels(clients * samples, "train"), "train")
    test = draw(labels(clients * samples // TEST_SHARE, "test"), "test")
    return Dataset(spec, train, test, "made", server=_server(settings, components, draw))


def _server(settings: FederationSettings, components: int, draw: Callable[[Labels, str], Split]) -> Split:
    """Draw the server's points, from the mixture and out-of-distribution.

    Raises:
        ConfigurationError: if ``server-examples`` cannot be divided equally, or no component is left.
    """
    present = components - settings.server_missing
    each, rest = divmod(settings.server_examples, components)
    if present < 1 or rest:
        raise ConfigurationError(
            f"server-examples, server-missing: {settings.server_examples} points are shared out over {components} "
            f"components equally, of which {settings.server_missing} are then left out; use a multiple of "
            f"{components}, and leave out fewer than that"
        )
    known = draw(np.repeat(np.arange(present), each), "server")
    uniform = numpy_generator(settings.seed, "mixture", "uniform").random(
        (settings.server_ood_examples, known.x.shape[1]), dtype=np.float32
    )
    strangers = np.full(len(uniform), components)  # out-of-distribution points have a label of their own
    return Split(np.concatenate([known.x, uniform]), np.concatenate([known.y, strangers]), {})
