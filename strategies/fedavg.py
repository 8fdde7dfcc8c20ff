"""FedAvg, server side (McMahan et al. 2017, Algorithm 1), with a server step (Reddi et al. 2021, Algorithm 1).

Sends the global model w_t. Receives Σ_k p_k·(w_k − w_t) and Σ_k p_k over the cohort, with the weights p_k = n_k
(``weighting = "examples"``) or 1 (``"uniform"``). Mean update: Δ_t = Σ p_k (w_k − w_t) / Σ p_k. Server step:
w_{t+1} = w_t + η·d_t, with η = ``server-learning-rate`` and the direction d_t that ``server-optimizer`` makes of Δ_t
(``core/server_step.py``). η = 1 and d_t = Δ_t is FedAvg.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, is_statistic, moved
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.server_step import ADAPTIVE, ServerStep
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages

log = logging.getLogger("flwr")


class FedAvg(CohortStrategy):
    """Weighted averaging of the cohort's models, with a server optimizer.

    Attributes:
        beside: arrays that a method sends beside the model; their names begin with ``BESIDE``. If clients return them,
            the outcome passed to :meth:`learn` contains the weighted sums of their changes.
        step: the server optimizer.
    """

    # Of any type: subclasses state a value or a static method.
    messages: ClassVar[Any] = Messages("sum", step="mean", features="whole")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.beside: Arrays = {}
        self.step = ServerStep(self.settings)
        if self.settings.server_optimizer == "adam":
            raise ConfigurationError(
                f"server-optimizer: 'adam' is for hypernetworks; '{self.settings.method}' averages models, for which "
                f"there are 'sgd', {', '.join(map(repr, ADAPTIVE))} ('fedadam' was called 'adam' in earlier versions)"
            )
        η = self.settings.server_learning_rate
        if self.settings.server_optimizer in ADAPTIVE and η >= 1:
            log.warning(
                "server-learning-rate is %g: '%s' moves parameters by about as much in a round; 0.1 or 0.01 is usual",
                η, self.settings.server_optimizer,
            )  # fmt: skip

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of the phase ``train`` in this round. By default: none."""
        return {}

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Update a method's own state from the outcome of the cohort's training of ``model``. By default: do nothing.

        Called before the model is updated.
        """

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have clients train the model; take a server step along the mean update, and return the new model."""
        update = self.mean_update(round, model)
        step = self.direction({name: Δ for name, Δ in update.items() if not is_statistic(name)})
        η = self.settings.server_learning_rate
        return {n: moved(w, step[n], η) if n in step else moved(w, update[n]) for n, w in model.items()}

    def mean_update(self, round: Round, model: Arrays) -> Arrays:
        """Have clients train the model; return the mean update Δ_t of each of its arrays."""
        outcome = round.updates(model | self.beside, self.train_arguments)
        self.learn(round, model, outcome)
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        return outcome.means([*model])

    def direction(self, update: Arrays) -> Arrays:
        """Return the direction of the server step for the mean update Δ_t. By default: as the server optimizer says."""
        return self.step.direction(update)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the server optimizer's state and the arrays sent beside the model, for checkpoints."""
        return {**self.step.state(), **self.beside}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the server optimizer's state and the arrays sent beside the model."""
        self.beside = {name: array for name, array in arrays.items() if name.startswith(BESIDE)}
        self.step.restore({name: array for name, array in arrays.items() if name not in self.beside})
