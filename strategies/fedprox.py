"""FedProx, server side (Li et al. 2020, Algorithm 2; adaptive μ: section 5.3.2).

Sends the global model wᵗ and μ; aggregates as FedAvg. With ``fedprox.adaptive``, μ starts at ``fedprox.mu`` and follows
the cohorts' training loss (:class:`AdaptiveMu`). μ = 0: FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.hyper.federated import FedProxHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg

STEP = 0.1
ROUNDS = 5
"""Number of rounds whose losses are averaged before they are compared."""


class AdaptiveMu:
    """The rule that adapts μ to the training loss.

    After every 5 rounds their mean loss is compared with that of the 5 rounds before: μ rises by 0.1 if the loss has
    risen, and falls by 0.1, not below 0, if it has fallen. The losses of single rounds cannot be compared, since
    each is that of other clients.

    Attributes:
        mu: the present μ.
        before: the mean loss of the last 5 rounds that were compared, if any.
        losses: the losses of the rounds since then.
    """

    def __init__(self, mu: float, before: float | None = None, losses: Sequence[float] = ()) -> None:
        self.mu, self.before, self.losses = mu, before, list(losses)

    def observe(self, loss: float) -> None:
        """Adapt μ to the training loss of a round."""
        self.losses.append(loss)
        if len(self.losses) < ROUNDS:
            return
        mean = float(np.mean(self.losses))
        if self.before is not None:
            self.mu = max(0.0, self.mu + STEP * float(np.sign(mean - self.before)))
        self.before, self.losses = mean, []


class FedProx(FedAvg):
    """FedAvg whose clients train with a proximal term of weight μ."""

    hyper: FedProxHyper

    @staticmethod
    def messages(hyper: FedProxHyper) -> Messages:
        """Return FedAvg's messages; an adaptive μ is more than a mean of updates."""
        adapted = "fedprox.adaptive: μ would follow the losses of older models"
        return Messages("sum", step=adapted if hyper.adaptive else "mean", features="whole")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._adaptive = AdaptiveMu(self.hyper.mu)
        if self.hyper.adaptive and self.settings.privacy.unit != "none":
            raise ConfigurationError("fedprox.adaptive: μ would follow the clients' losses, which are not protected")

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return μ, which every client receives."""
        return {"mu": self._adaptive.mu}

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Adapt μ to the cohort's mean training loss, with ``fedprox.adaptive``."""
        if self.hyper.adaptive:
            self._adaptive.observe(outcome.mean("loss"))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, and that of the heuristic for μ."""
        arrays, facts = super().state()
        return arrays, {**facts, "mu": vars(self._adaptive)}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore FedAvg's state, and that of the heuristic for μ."""
        super().restore(arrays, facts)
        rule = facts["mu"]
        self._adaptive = AdaptiveMu(rule["mu"], rule["before"], rule["losses"])

    def report(self) -> dict[str, Any]:
        """Return the final μ, for ``summary.json``."""
        return {"fedprox": {"mu": self._adaptive.mu}}
