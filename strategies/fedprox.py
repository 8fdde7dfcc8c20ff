"""FedProx, server side (Li et al. 2020, Algorithm 2; adaptive μ: section 5.3.2).

Sends the global model wᵗ and μ; aggregates as FedAvg. With ``fedprox.adaptive``, μ starts at 1, decreases by 0.1 after
the cohort's mean training loss has fallen in 5 rounds in a row, and increases by 0.1 whenever it rises. μ = 0: FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from florilegium.clients.hyper.federated import FedProxHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import Setup, sums_of_updates, whole_network
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round
from florilegium.strategies.fedavg import FedAvg

STEP = 0.1
PATIENCE = 5


class AdaptiveMu:
    """The heuristic that adapts μ to the training loss.

    Attributes:
        mu: the present μ.
        last: the previous round's loss, if any.
        falling: number of rounds in a row in which the loss has fallen.
    """

    def __init__(self, mu: float = 1.0, last: float | None = None, falling: int = 0) -> None:
        self.mu, self.last, self.falling = mu, last, falling

    def observe(self, loss: float) -> None:
        """Adapt μ to the training loss of a round."""
        if self.last is not None and loss > self.last:
            self.mu, self.falling = self.mu + STEP, 0
        elif self.last is not None and loss < self.last:
            self.falling += 1
            if self.falling == PATIENCE:
                self.mu, self.falling = max(0.0, self.mu - STEP), 0
        self.last = loss


class FedProx(FedAvg):
    """FedAvg whose clients train with a proximal term of weight μ."""

    privacy_gap = staticmethod(sums_of_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: FedProxHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._adaptive = AdaptiveMu()
        if self.hyper.adaptive and self.settings.privacy.unit != "none":
            raise ConfigurationError("fedprox.adaptive: μ would follow the clients' losses, which are not protected")

    @property
    def mu(self) -> float:
        """The present μ."""
        return self._adaptive.mu if self.hyper.adaptive else self.hyper.mu

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return μ, which every client receives."""
        return {"mu": self.mu}

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Adapt μ to the cohort's mean training loss."""
        self._adaptive.observe(outcome.mean("loss"))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, and that of the heuristic for μ."""
        arrays, facts = super().state()
        return arrays, {**facts, "mu": vars(self._adaptive)}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore FedAvg's state, and that of the heuristic for μ."""
        super().restore(arrays, facts)
        self._adaptive = AdaptiveMu(**facts["mu"])

    def report(self) -> dict[str, Any]:
        """Return the final μ, for ``summary.json``."""
        return {"fedprox": {"mu": self.mu}}
