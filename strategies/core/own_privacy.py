"""Base of the strategies that protect their sums themselves, MDM and the clusterings: whom they ask.

For client-level privacy, two federations are neighbours if one has one client more. Cohorts are therefore Poisson
samples: without the client, a sum lacks its clipped contribution and is otherwise the same. In a cohort of a fixed size
another client would take its place, and the sum would change by up to twice the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays
from florilegium.privacy.noise import secret_generator
from florilegium.privacy.sampling import poisson_sample
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Cohort


class OwnPrivacy(CohortStrategy):
    """Asks Poisson samples of the clients for sums, if its own keys protect whole clients."""

    hyper: KMeansHyper | MDMHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.poisson and (self.settings.cohort_size or self.settings.oversample > 1):
            raise ConfigurationError(
                "cohort-size, oversample: with privacy-unit = 'client' each client must take part independently of the "
                "others; set cohort-size to 0, oversample to 1, and participation to the probability that a client "
                "takes part"
            )
        if self.poisson and self.settings.fleet.availability != "always":
            raise ConfigurationError(
                "fleet.availability: how long a client takes decides who is online afterwards, which the account of "
                "privacy-unit = 'client' does not cover; set it to 'always'"
            )

    @property
    def poisson(self) -> bool:
        """Whether cohorts are Poisson samples: with client-level privacy."""
        return self.hyper.privacy_unit == "client"

    def sample(self, round: Round) -> Cohort:
        """Draw the round's cohort; with client-level privacy a Poisson sample, on real devices a secret one.

        Its rate is ``participation`` itself, which does not depend on the number of clients.
        """
        if not self.poisson:
            return super().sample(round)
        s = self.settings
        rate = s.final_participation if s.final_participation and self.is_final(round.number) else s.participation
        rng = secret_generator() if self.clients.deployed else numpy_generator(s.seed, "cohort", round.number)
        drawn = poisson_sample(rng, self.trainable(), rate)
        return Cohort(drawn, len(drawn))

    def ask_sums(
        self, round: Round, phase: str, cohort: Sequence[str], arrays: Arrays, shapes: Mapping[str, tuple[int, ...]],
        **arguments: Any,
    ) -> Outcome:  # fmt: skip
        """Have ``cohort`` carry out ``phase`` on ``arrays``; return the exact sums of what the clients return.

        Args:
            round: the round.
            phase: name of the phase.
            cohort: the clients; if a Poisson sample is empty, all sums are zeros.
            arrays: what every client is sent.
            shapes: shapes of the sums that clients return, by name.
            arguments: the phase's own arguments.
        """
        if not cohort:
            return Outcome([], {name: np.zeros(shape) for name, shape in shapes.items()}, {}, {})
        return round.ask(phase, cohort, send=arrays, reduce="sum", shapes=shapes, **arguments)
