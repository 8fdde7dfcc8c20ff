"""APPLE, client side (Luo and Wu 2022, Algorithm 1): learn a core model, and which models to combine it with.

The personal model is v_i = p_ii·w_i + Σ_{j≠i} p_ij·w_j. The client trains its core model w_i and its directed
relationships p_i on F_i(v_i) + λ(r)·μ/2·‖p_i − p_0‖², while the received core models w_j of others stay fixed; λ(r)
falls from 1 to 0 in L rounds. Returns w_i and p_i; keeps w_i, and v_i to predict with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Group, Objective, gradient_of
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.banked import BankedClient
from florilegium.clients.hyper.bank import APPLEHyper
from florilegium.models.batch_norm import has_lone_channels
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, trained

RELATIONS, INITIAL = "relations:p", "relations:p0"
"""Names of the arrays with p_i and p_0 of the client itself and of those whose models it receives, in this order."""
CORE = "core"
"""Part of a client's state: its core model w_i."""
LEAST = 0.001
"""Value that the exponential λ(r) approaches before it is set to 0 (the authors' code)."""


class APPLEClient(BankedClient):
    """Trains its core model and its relationships to other clients' core models."""

    training = Training(
        "it learns relationships from products of gradients with other clients' models, which are not clipped"
    )
    hyper: APPLEHyper

    @phase
    def train(self, arrays: Arrays, *, count: int = 1) -> Answer:
        """Train w_i and p_i by steps on the loss of v_i; return both. ``count``: number of clients with a p_ij."""
        received = self.receive(arrays)
        relations, initial = received.pop(RELATIONS), received.pop(INITIAL)
        set_arrays(self.model, self.state.load(CORE) or self._first(received, relations))
        named, device = trained(self.model), self.data.train.y.device
        weights = list(named.values())
        parts = [torch.from_numpy(received[name]).reshape(-1, weight.numel()) for name, weight in named.items()]
        sent = torch.cat(parts, dim=1).to(device)  # a row for each w_j, perhaps one for the sum of others
        own = torch.cat([weight.detach().flatten() for weight in weights])
        models = torch.cat([own[None], sent[: len(relations) - 1]])  # w_i and each w_j with a p_ij of its own
        p, p0 = (torch.tensor(array, device=device) for array in (relations, initial))
        pull = self.hyper.regularization * self.schedule()
        mixture = _Mixture(weights, models, sent[len(relations) - 1 :].sum(dim=0), p, p0, pull)
        rate = self.settings.learning_rate * (count if self.hyper.scale_rate else 1)
        rates = [Group([mixture.core], rate), Group([mixture.p], self.hyper.relation_learning_rate, plain=True)]
        loss = self.descend(
            groups=rates,
            objective=self._objective(mixture),
            gradient_hook=mixture.differentiate,
            least=1,  # see _objective
        )
        mixture.mix()
        self.state.save(get_arrays(self.model))
        mixture.write(mixture.core)
        core = get_arrays(self.model)
        self.state.save(core, CORE)
        return Answer(core | {RELATIONS: mixture.p.detach().cpu().numpy()}, len(self.data.train), {"loss": loss})

    def schedule(self) -> float:
        """Return λ(r) of this round: 1 in the first round, 0 from the L-th on."""
        past, rounds = self.round - 1, self.hyper.scheduler_rounds
        if past >= rounds:
            return 0.0
        if self.hyper.scheduler == "cosine":
            return (math.cos(math.pi * past / rounds) + 1) / 2
        return float(LEAST ** (past / rounds))

    def _objective(self, mixture: _Mixture) -> Objective:
        """Return F_i(v_i) + λ(r)·μ/2·‖p_i − p_0‖², whose gradients are ``mixture``'s."""
        x = self.data.train.x
        lone = has_lone_channels(self.model, x[:1])

        def objective(rows: Tensor) -> Tensor:
            mixture.mix()
            if lone:  # batch norm has no statistics of a single example
                self.model.train(len(rows) > 1)
            return self.loss(self.model(x[rows]), rows) + mixture.penalty()

        return objective

    def _first(self, received: Arrays, relations: NDArray[np.float32]) -> Arrays:
        """Return the first core model: the mean of all, which is what was received, combined, over 1 − p_ii."""
        p = relations.astype(np.float64)
        first = dict(self.initial)
        for name, sent in received.items():
            total = np.tensordot(p[1:], sent[: len(p) - 1], axes=1) + sent[len(p) - 1 :].sum(axis=0, dtype=np.float64)
            first[name] = (total / (1 - p[0])).astype(sent.dtype)
        return first


class _Mixture:
    """The personal model v_i in a network's parameters, and the gradients of w_i and p_i that follow from v_i's.

    v_i is linear in w_i and in p_i, so ∇_{w_i} F_i(v_i) = p_ii·∇F_i(v_i) and ∂F_i(v_i)/∂p_ij = ⟨∇F_i(v_i), w_j⟩.

    Args:
        weights: the network's trained parameters, d numbers.
        models: w_i and the w_j that have a p_ij of their own, (1 + m, d).
        rest: sum of the other models, each times its p_ij, (d,).
        p: p_i, (1 + m,), in the order of ``models``.
        initial: p_0, in the same order.
        pull: λ(r)·μ.

    Attributes:
        core: w_i, (d,), to be trained; the first row of ``models``.
        p: p_i, to be trained.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], models: Tensor, rest: Tensor, p: Tensor, initial: Tensor, pull: float
    ) -> None:
        self.core, self.p = nn.Parameter(models[0]), nn.Parameter(p)
        self._weights, self._models, self._rest, self._initial, self._pull = weights, models, rest, initial, pull

    def mix(self) -> None:
        """Make the network v_i, ready for a backward pass, although the training loop steps along w_i and p_i."""
        with torch.no_grad():
            self.write(torch.addmv(self._rest, self._models.T, self.p))
        for weight in self._weights:
            weight.grad = None  # the network is that of all clients of the process, and tests train it too
            weight.requires_grad_()

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        """Copy a vector (d,) into the network's parameters."""
        parts = zip(vector.split([weight.numel() for weight in self._weights]), self._weights, strict=True)
        torch._foreach_copy_([*self._weights], [part.view_as(weight) for part, weight in parts])

    @torch.no_grad()
    def penalty(self) -> Tensor | float:
        """Return λ(r)·μ/2·‖p_i − p_0‖²."""
        return self._pull / 2 * (self.p - self._initial).square().sum() if self._pull else 0.0

    @torch.no_grad()
    def differentiate(self, *_: object) -> None:
        """Move from the gradients of the network's parameters to those of w_i and p_i; a gradient hook."""
        slope = torch.cat([gradient_of(weight).flatten() for weight in self._weights])  # ∇F_i(v_i)
        self.core.grad = self.p[0] * slope
        self.p.grad = torch.addmv(self._pull * (self.p - self._initial), self._models, slope)
