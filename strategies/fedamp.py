"""FedAMP, server side (Huang et al. 2021, Algorithm 1, equations 4 and 6): attentive message passing.

The server keeps the model w_i of every client. A client of the cohort receives u_i = Σ_j ξ_ij·w_j with ξ_ij =
α·A'(‖w_i − w_j‖²) for j ≠ i, ξ_ii = 1 − Σ_{j≠i} ξ_ij, and A(x) = 1 − exp(−x/σ): similar models mix most. It returns its
new w_i. A client without a model receives the mean of the bank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.bank import FedAMPHyper
from florilegium.common.blocks import BLOCK
from florilegium.models.parameters import Arrays, shapes_of, without_statistics
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.bank import Banked

Matrix = NDArray[np.float64]


def attention(squares: Matrix, own: Sequence[int], hyper: FedAMPHyper) -> Matrix:
    """Return the weights ξ (c, n) of n models in the mixtures of c clients; each row is ≥ 0 and sums to 1.

    If α is so large that the other models' weights exceed 1 together, it is reduced for this client until they sum to
    1.

    Args:
        squares: squared distances (c, n) between the clients' models and all models.
        own: position of each client's model among the n.
        hyper: α and σ.
    """
    ξ: Matrix = hyper.step_size / hyper.scale * np.exp(-squares / hyper.scale)  # α·A'(x)
    rows = np.arange(len(own))
    ξ[rows, own] = 0.0
    ξ /= np.maximum(ξ.sum(axis=1, keepdims=True), 1.0)
    ξ[rows, own] = np.maximum(1.0 - ξ.sum(axis=1), 0.0)
    return ξ


class FedAMP(Banked):
    """Mixes the clients' models, for each client with weights of its own."""

    messages = Messages(
        "single",
        features="whole",
        individual="the server keeps every client's own model, and other clients receive mixtures of these models",
    )
    hyper: FedAMPHyper

    def train_cohort(self, round: Round, model: Arrays, cohort: Sequence[str]) -> Outcome:
        """Send each client its mixture u_i; return the clients' new models."""
        order = {client: position for position, client in enumerate(self.members)}
        coefficients = np.zeros((len(cohort), len(order) + 1))  # the last is that of the mean
        known = [row for row, client in enumerate(cohort) if client in order]
        coefficients[:, -1] = 1.0
        if known:
            coefficients[known, -1] = 0.0
            clients = [cohort[row] for row in known]
            own = [order[client] for client in clients]
            coefficients[known, :-1] = attention(self._squares(round, clients), own, self.hyper)
        scatter = self.combine(round, model, coefficients)
        return round.ask(
            "train", cohort, reduce="stack", scatter=scatter, shapes=shapes_of(model), base=self.last(round, model)
        )  # fmt: skip

    def _squares(self, round: Round, clients: Sequence[str]) -> Matrix:
        """Return the squared distances (c, n) of the parameters of ``clients``' models and all models of the bank."""
        models = [self.load(round, client) for client in clients]
        squares = np.zeros((len(clients), len(self.members)))
        for positions, stacked in self.chunks(round):
            for name, array in without_statistics(stacked).items():
                mine = np.stack([model[name].reshape(-1) for model in models])
                others = array.reshape(len(array), -1)
                for start in range(0, mine.shape[1], BLOCK):
                    a = mine[:, start : start + BLOCK].astype(np.float64)
                    b = others[:, start : start + BLOCK].astype(np.float64)
                    # ‖a‖² + ‖b‖² − 2⟨a, b⟩, which needs no array of all differences
                    squares[:, positions] += (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
        return np.maximum(squares, 0.0)
