"""Trained modules beside the model, client side: a policy, embeddings, a hypernetwork, parameters of a representation.

Their arrays travel in the same messages as the model's, under names that begin with ``BESIDE``.
"""

from __future__ import annotations

from torch import nn

from florilegium.clients.core.wire import BESIDE
from florilegium.models.parameters import Arrays, get_arrays


def beside(module: nn.Module) -> Arrays:
    """Return the arrays of ``module`` under the names by which they travel beside a model."""
    return {BESIDE + name: array for name, array in get_arrays(module).items()}
