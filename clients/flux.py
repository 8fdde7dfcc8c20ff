"""FLUX, client side (Fenoglio et al. 2025): FedAvg's local training, and descriptors of the client's data.

A descriptor consists of moments of latent representations z: the features before the network's last block, projected
to l dimensions by a random orthonormal matrix that all clients share. Its label-agnostic part is the mean and the
standard deviation of z over all training examples; the rest is the same for each class, −1 for a class with fewer than
two examples.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.clustered import FLUXHyper
from florilegium.common.errors import RunError
from florilegium.common.memo import remembered
from florilegium.common.seeds import numpy_generator
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.tasks.task import CLASSES

MOMENTS = "moments"
ABSENT = -1.0
"""Both moments of a class of which a client has fewer than two examples."""


class FLUXClient(BaseClient):
    """Trains the received model; describes its data by moments of their features."""

    training = Training(stacked=True)
    needs = frozenset({CLASSES})

    needs_blocks = True
    hyper: FLUXHyper
    model: nn.Sequential

    @phase
    def describe(self, arrays: Arrays, *, labels: bool) -> Answer:
        """Return the descriptor of the training examples, (1 + C, 2, l); without ``labels`` the label-agnostic part.

        Its last axes are mean or standard deviation, and dimensions; its first is all examples, then each class.
        """
        examples = self.data.train
        if not len(examples):
            raise RunError("it has no examples to describe")
        set_arrays(self.model, arrays)
        z = features(body_and_classifier(self.model)[0], examples).flatten(1).cpu().double()
        classes = dataset_of(self.settings).classes
        size = dimensions(self.hyper, classes, z.shape[1])
        z = z @ torch.from_numpy(projection(z.shape[1], size, self.settings.seed))
        members = torch.ones(len(z), 1, dtype=z.dtype)
        if labels:
            members = torch.cat([members, one_hot(examples.y.cpu(), classes).to(z.dtype)], dim=1)
        return Answer({MOMENTS: moments(z, members).numpy()}, len(examples))


def dimensions(hyper: FLUXHyper, classes: int, features: int) -> int:
    """Return l, the number of dimensions of a descriptor, for this many classes, and features of the network."""
    return min(hyper.dimensions or classes, features)


def moments(z: Tensor, members: Tensor) -> Tensor:
    """Return mean and standard deviation of z (n, l) over each group of examples, (g, 2, l).

    Args:
        z: representations.
        members: which examples are in which group, (n, g), 1 or 0. The first group is that of all examples; others
            with fewer than two have the moments ``ABSENT``.
    """
    counts = members.sum(dim=0)[:, None]
    μ = members.T @ z / counts.clamp(min=1)
    σ = (members.T @ z.square() / counts.clamp(min=1) - μ.square()).clamp(min=0).sqrt()
    found = torch.stack([μ, σ], dim=1)
    absent = counts[:, 0] < 2
    absent[0] = False
    found[absent] = ABSENT
    return found


@remembered(2)
def projection(features: int, size: int, seed: int) -> NDArray[np.float64]:
    """Return a random matrix with orthonormal columns, (features, size); the same for every client of a run."""
    normal = numpy_generator(seed, "projection").standard_normal((features, size))
    q, r = np.linalg.qr(normal)
    result: NDArray[np.float64] = q * np.sign(np.diag(r))  # libraries differ in these signs
    return result
