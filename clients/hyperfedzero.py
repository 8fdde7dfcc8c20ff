"""HyperFedZero, client side (Zhou et al. 2025): each input is classified with parameters made from its embedding.

Receives and returns the parameters of the distribution extractor f, with its noise network, and of the hypernetwork h
(:class:`florilegium.models.zero_shot.ZeroShot`). On a batch a client minimises the mean cross-entropy of c(x_i; h(e_i))
+ α·var(Σ e_i)/mean(Σ e_i) + β·mean entropy of e_i. Predictions need no labels and no training of the client.
"""

from __future__ import annotations

import torch
from torch import Tensor

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.zero_shot import HyperFedZeroHyper
from florilegium.common.memo import remembered
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.settings import NetworkSettings
from florilegium.models.zero_shot import Sizes, ZeroShot, build_zero_shot, entropy, imbalance
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.task import VECTOR


class HyperFedZeroClient(BaseClient):
    """Trains extractor and hypernetwork, and predicts with what they make of each input."""

    training = Training("the balancing penalty is of a batch's examples together")
    needs = frozenset({VECTOR})

    hyper: HyperFedZeroHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train extractor and hypernetwork; return both."""
        network = self._received(arrays)
        loss = self._fit(network)
        return Answer(get_arrays(network), len(self.data.train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received network; with ``finetune-epochs`` also the one that the client trains further."""
        self.predictor = self._received(arrays)
        return super().test({})

    def personalise(self) -> bool:
        """Train the received extractor and hypernetwork further, if asked to and the client has labels."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        assert isinstance(self.predictor, ZeroShot)
        self._fit(self.predictor, epochs=epochs)
        return True

    # --------------------------------------------------------------------------------------- details

    def _received(self, arrays: Arrays) -> ZeroShot:
        """Return the received network."""
        self.expect_own_strategy("hypernetwork.chunks" in arrays)
        network = _network(self.settings, dataset_of(self.settings), self.hyper, self.settings.seed)
        network.to(self.data.train.y.device)
        set_arrays(network, arrays)
        return network

    def _fit(self, network: ZeroShot, *, epochs: int | None = None) -> float:
        """Train ``network`` in place on the method's objective; return the mean loss."""
        x, y, α, β = self.data.train.x, self.data.train.y, self.hyper.balance, self.hyper.entropy
        draws = self.generator("noise")

        def objective(rows: Tensor) -> Tensor:
            z = torch.randn(len(rows), self.hyper.embedding_size, generator=draws).to(y.device)
            log_e = network.embed(x[rows], z)
            return self.loss(network.classify(x[rows], log_e), rows) + α * imbalance(log_e) + β * entropy(log_e)

        return self.descend(model=network, epochs=epochs, objective=objective)


def make_network(settings: NetworkSettings, spec: DatasetSpec, hyper: HyperFedZeroHyper, seed: int) -> ZeroShot:
    """Return the network with which a run begins; arguments are values of keys, and the dataset.

    Raises:
        ConfigurationError: if ``model`` does not fit the dataset or the method.
    """
    sizes = Sizes(
        hyper.embedding_size, hyper.hidden_layers, hyper.hidden_width, hyper.chunk_size, hyper.chunk_embedding_size
    )
    return build_zero_shot(settings, spec.shape, spec.learned.outputs[0], sizes, hyper.scale, seed, codes=spec.codes)


@remembered(2)
def _network(settings: NetworkSettings, spec: DatasetSpec, hyper: HyperFedZeroHyper, seed: int) -> ZeroShot:
    """Return the network that all clients of the process share; every client overwrites its contents."""
    return make_network(settings, spec, hyper, seed)
