"""FLowDUP, server side (algorithm 1): average the updates of ψ of a cohort of labeled and unlabeled clients.

Sent and received: ψ, the parameters of the hypernetwork h and the centre ψ_r. θ₀ and P never travel.
"""

from __future__ import annotations

from clients.flowdup import make_hypernetwork
from clients.hyper import FLowDUPHyper
from common.errors import ConfigurationError
from common.seeds import numpy_generator
from models.parameters import Arrays, get_arrays
from strategies.cohort import Cohort
from strategies.subspace import Subspace


class FLowDUP(Subspace):
    """FedAvg of a hypernetwork, by clients with and without labels."""

    hyper: FLowDUPHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Start from new ψ."""
        s = self.settings
        return get_arrays(make_hypernetwork(self.hyper, s.model, self.spec.shape, s.seed))

    def privacy_gap(self) -> str:
        """Return why the keys of table ``privacy`` are not for this method."""
        return "its cohorts hold labeled and unlabeled clients in fixed shares, not by chance"

    def trainable(self) -> list[str]:
        """Return the labeled clients and, where they take part, the unlabeled ones."""
        return self.roster.ids("seen", *(["unlabeled"] if self.hyper.labeled_share < 1 else []))

    def sample(self, server_round: int) -> Cohort:
        """Draw the cohort: a share α of it among labeled clients, the rest among the others.

        Where there are too few of the ones, more of the others take part.
        """
        drawn = super().sample(server_round)
        size = len(drawn)
        labeled = self.roster.ids("seen")
        if len(labeled) == len(self.trainable()):
            return drawn  # as for every method
        unlabeled = [client for client in self.trainable() if not self.roster.clients[client].labeled]
        wanted = round(self.hyper.labeled_share * size)
        count = min(len(labeled), max(wanted, size - len(unlabeled)))
        rng = numpy_generator(self.settings.seed, "cohort", server_round, "labels")
        chosen = {
            group[i]
            for group, n in ((labeled, count), (unlabeled, min(size - count, len(unlabeled))))
            for i in rng.choice(len(group), size=n, replace=False)
        }
        return Cohort((client for client in self.trainable() if client in chosen), drawn.wanted)

    def _check_roster(self) -> None:
        super()._check_roster()
        if not self.roster.ids("seen"):
            raise ConfigurationError("method 'flowdup' needs clients with labels in training; here none has any")
