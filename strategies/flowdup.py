"""FLowDUP, server side (algorithm 1): average the updates of ψ from a cohort of labeled and unlabeled clients.

Sends and receives ψ: the parameters of the hypernetwork h and the centre ψ_r. θ₀ and P are never sent.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.core.network import check_nothing_frozen
from florilegium.clients.flowdup import make_hypernetwork
from florilegium.clients.hyper.subspace import FLowDUPHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.families.subspace import SUBSPACE, Subspace


class FLowDUP(Subspace):
    """FedAvg of a hypernetwork that clients with and without labels train."""

    messages = Messages("sum", features=SUBSPACE, cohorts="labeled and unlabeled clients in fixed shares")
    hyper: FLowDUPHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the initial ψ."""
        s, h = self.settings, self.hyper
        if h.inner_model == "centers":
            raise ConfigurationError("flowdup.inner-model: 'centers' is for clustering, it makes no features")
        try:
            made = make_hypernetwork(h, s.model, self.spec.shape, s.seed)
        except ConfigurationError as error:  # name the key that the network comes from
            raise ConfigurationError(str(error).replace("model:", "flowdup.inner-model:", 1)) from error
        check_nothing_frozen(made, h.inner_model or s.model, s.method)
        return get_arrays(made)

    def trainable(self) -> list[str]:
        """Return the labeled seen clients, and unlabeled ones if these train too; none while no client has labels."""
        groups = ["seen", "unlabeled"] if self.hyper.labeled_share < 1 else ["seen"]
        return self.clients.ids(*groups) if self.clients.ids("seen") else []

    def sample(self, round: Round) -> Cohort:
        """Draw the cohort: a share α of labeled clients, at least one; the rest are unlabeled.

        If there are too few clients of one kind, more of the other kind take part.
        """
        drawn = super().sample(round)
        size = len(drawn)
        if len(self.clients.ids("seen")) == len(self.trainable()):
            return drawn  # all clients are labeled
        clients = self.clients.online(self.trainable())
        labeled = [client for client in clients if self.clients[client].labeled]
        unlabeled = [client for client in clients if not self.clients[client].labeled]
        wanted = max(1, int(np.rint(self.hyper.labeled_share * size)))
        count = min(len(labeled), max(wanted, size - len(unlabeled)))
        rng = numpy_generator(self.settings.seed, "cohort", round.number, "labels")
        chosen = {
            group[i]
            for group, n in ((labeled, count), (unlabeled, min(size - count, len(unlabeled))))
            for i in rng.choice(len(group), size=n, replace=False)
        }
        return Cohort((client for client in clients if client in chosen), min(drawn.wanted, len(chosen)))
