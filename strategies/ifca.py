"""IFCA, server side (Ghosh et al. 2020, Algorithm 1): K models, each averaged over the clients that choose it.

Sends θ_1 … θ_K to every client of the cohort M. Receives, for each model, Σ wᵢ·(θ̃ᵢ − θ_j) over the clients S_j that
chose it, and their choices. Model averaging divides by Σ wᵢ over S_j; gradient averaging by Σ wᵢ over M, so that a
model moves the less, the fewer clients chose it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.core.network import network_for
from florilegium.clients.core.wire import Reply, of_network
from florilegium.clients.families.clustered import CLUSTER, named, of_clusters
from florilegium.clients.hyper.clustered import IFCAHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import entropy
from florilegium.models.blocks import last_blocks, of_blocks
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.initial import replaced
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.clustered import NO_COMMON_NETWORK, Clustered, told_clusters
from florilegium.strategies.folder.run_folder import Checkpoint

log = logging.getLogger("flwr")


class IFCA(Clustered):
    """Alternates between clients' choices of a model and averaging over the clients that chose the same."""

    hyper: IFCAHyper

    @staticmethod
    def messages(hyper: IFCAHyper) -> Messages:
        """Return that clients choose a model and train it; they share features if they share the body."""
        chosen = "each client reports which model it has chosen, and nothing protects that"
        return Messages("parts", features="whole" if hyper.shared_body else NO_COMMON_NETWORK, individual=chosen)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._choices = [0] * self.hyper.clusters  # number of clients that chose each model in the last round

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Raise ``ValueError`` if clients return others than the whole models of the clusters that they name."""
        whole, trained = of_clusters(sent), of_clusters(reply.arrays)
        told = {*reply.metrics.get(CLUSTER, [])}
        if phase == "train" and (told != {*trained} or any(whole[j].keys() != trained[j].keys() for j in trained)):
            raise ValueError(f"its clients name the clusters {sorted(told)}, and their arrays are not those of these")

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return K initial models: the first is the given one, the others are drawn from the run's seed."""
        s, spec = self.settings, dataset_of(self.settings)
        models = [arrays]
        for number in range(1, self.hyper.clusters):
            models.append(get_arrays(network_for(spec, s, entropy(s.seed, "cluster", number) % 2**31)))
        own = self._own_blocks(arrays)
        shared = {name: array for name, array in arrays.items() if name not in own}
        for number, model in enumerate(models):
            shared |= named(number, {name: model[name] for name in own})
        return shared

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Return K initial models that share another run's blocks; what they do not share is drawn anew.

        Raises:
            ConfigurationError: if they share none: K equal models would all be chosen, or none but the first.
        """
        model = replaced(self.settings, network, trained.arrays)
        if self.hyper.clusters == 1:
            return self.server_part(model)
        if not self.hyper.shared_body:
            raise ConfigurationError(
                "init: the models of several clusters must differ at first; set ifca.shared-body = true, so that they "
                "share that model's body alone"
            )
        first = self.server_part(network)
        return first | {name: model[name] for name in of_network(first)}

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have each client of the cohort train the model that it chooses; average what the choices have in common."""
        cohort = round.sample()
        outcome = round.ask("train", cohort, send=model, reduce="delta")
        chosen, returned = told_clusters(outcome), of_clusters(outcome.arrays)
        after = model | self.moved(of_network(model), outcome.arrays, outcome.weight)
        for cluster, θ in of_clusters(model).items():
            self._choices[cluster] = int((chosen == cluster).sum())
            mine = float(outcome.metrics["weight"][chosen == cluster].sum())
            if mine:
                divisor = mine if self.hyper.averaging == "models" else outcome.weight
                after |= named(cluster, self.moved(θ, returned[cluster], divisor))
        log.info("round %d: loss %.4g, choices %s", round.number, outcome.mean("loss"), self._choices)
        return after

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have clients choose a model and test it; those without labels take the most popular one."""
        popular = int(np.argmax(self._choices))
        return round.ask("test", clients, reduce="sum", send=model, evaluation=True, popular=popular)

    def _own_blocks(self, arrays: Arrays) -> Arrays:
        """Return the arrays that clusters do not share."""
        if not self.hyper.shared_body:
            return arrays
        return of_blocks(arrays, last_blocks(self.federation.network, 1, "ifca.shared-body"))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the numbers of choices in the last round, for checkpoints."""
        return {}, {"choices": self._choices.copy()}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the numbers of choices."""
        self._choices = list(facts["choices"])
