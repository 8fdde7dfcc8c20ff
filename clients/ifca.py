"""IFCA, client side (Ghosh et al. 2020, Algorithm 1): train the one of K models that fits the client's data best.

Receives the models θ_1 … θ_K, which may share all blocks but the last. The client's cluster is the one whose model has
the least loss on its training examples, ĵ = argmin_j F_i(θ_j). It trains θ_ĵ and returns it alone, with ĵ as a metric.
Before a test it chooses in the same way; a client without labels takes the cluster that the server names.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import POSITIVE, Reports
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import of_network
from florilegium.clients.families.clustered import CLUSTER, named, of_clusters
from florilegium.clients.hyper.clustered import IFCAHyper
from florilegium.common.errors import RunError
from florilegium.models.blocks import cut, last_from
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import LOSS


class IFCAClient(BaseClient):
    """Chooses a cluster by its training loss, and trains that cluster's model."""

    training = Training(stacked=True)
    hyper: IFCAHyper
    reports: ClassVar[Reports] = {CLUSTER: POSITIVE}
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the model with the least training loss; return it under its cluster's names."""
        shared, own = self._received(arrays)
        cluster = self._choose(shared, own)
        answer = super().train(shared | own[cluster])
        returned = {name: answer.arrays[name] for name in shared}
        returned |= named(cluster, {name: answer.arrays[name] for name in own[cluster]})
        return Answer(returned, answer.num_examples, answer.metrics | {CLUSTER: float(cluster)})

    @phase
    def test(self, arrays: Arrays, *, popular: int = 0) -> Answer:
        """Evaluate the model with the least training loss; without labels, that of cluster ``popular``."""
        shared, own = self._received(arrays)
        cluster = self._choose(shared, own) if self.data.labeled else popular
        answer = super().test(shared | own[cluster])
        answer.metrics[CLUSTER] = float(cluster)
        return answer

    def _received(self, arrays: Arrays) -> tuple[Arrays, dict[int, Arrays]]:
        """Return the arrays that all clusters share, and those of each cluster."""
        own = of_clusters(arrays)
        self.expect_own_strategy(bool(own))
        return of_network(arrays), own

    def _choose(self, shared: Arrays, own: dict[int, Arrays]) -> int:
        """Return the cluster whose model has the least mean loss on the training examples; of several, the first.

        Raises:
            RunError: if no model has a finite loss.
        """
        examples = self.data.train
        body, head = cut(self.model, last_from(self.model, own[0]))
        set_arrays(self.model, shared)
        inputs = Examples(features(body, examples), examples.y)  # the shared body's features are computed only once
        losses = []
        for arrays in own.values():
            set_arrays(self.model, arrays)
            losses.append(self.task.measure(features(head, inputs), inputs.y)[LOSS])
        if not np.isfinite(losses).any():
            raise RunError(f"no cluster's model has a finite loss on its {len(examples)} training examples")
        return list(own)[int(np.nanargmin(losses))]
