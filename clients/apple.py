"""APPLE, client side (Luo and Wu 2022, Algorithm 1): learn a core model, and which models to combine it with.

The personal model is v_i = p_ii·w_i + Σ_{j≠i} p_ij·w_j. The client trains its core model w_i and its directed
relationships p_i on F_i(v_i) + λ(r)·μ/2·‖p_i − p_0‖², while the received core models w_j of others stay fixed; λ(r)
falls from 1 to 0 in L rounds. Returns w_i and p_i; keeps w_i, and v_i to predict with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Group, Objective, gradients
from florilegium.clients.families.banked import BankedClient
from florilegium.clients.hyper.bank import APPLEHyper
from florilegium.models.batch_norm import has_lone_channels
from florilegium.models.parameters import Arrays, frozen, get_arrays, set_arrays, trained

RELATIONS, INITIAL = "relations:p", "relations:p0"
"""Names of the arrays with p_i and p_0 of the client itself and of those whose models it receives, in this order."""
CORE = "core"
"""Part of a client's state: its core model w_i."""
LEAST = 0.001
"""Value that the exponential λ(r) approaches before it is set to 0 (the authors' code)."""


class APPLEClient(BankedClient):
    """Trains its core model and its relationships to other clients' core models."""

    hyper: APPLEHyper

    @staticmethod
    def example_gap(hyper: APPLEHyper) -> str:
        """Return why the class does not keep example privacy."""
        return "it learns relationships from products of gradients with other clients' models, which are not clipped"

    @phase
    def train(self, arrays: Arrays, *, count: int = 1) -> Answer:
        """Train w_i and p_i by steps on the loss of v_i; return both. ``count``: number of clients with a p_ij."""
        received = self.receive(arrays)
        relations, initial = received.pop(RELATIONS), received.pop(INITIAL)
        set_arrays(self.model, self.state.load(CORE) or self._first(received, relations))
        named, device = trained(self.model), self.data.train.y.device
        weights = list(named.values())
        sent = torch.cat([torch.from_numpy(received[name]).flatten(1) for name in named], dim=1).to(device)
        others, rest = sent[: len(relations) - 1], sent[len(relations) - 1 :].sum(dim=0)  # (m, d), (d,)
        core = nn.Parameter(torch.cat([weight.detach().flatten() for weight in weights]))  # w_i, (d,)
        p, p0 = nn.Parameter(torch.tensor(relations, device=device)), torch.from_numpy(initial).to(device)

        def personal() -> Tensor:
            """Return v_i as a vector (d,)."""
            return p[0] * core + p[1:] @ others + rest

        objective = self._objective(weights, personal, lambda: (p - p0).square().sum())
        rate = self.settings.learning_rate * (count if self.hyper.scale_rate else 1)
        rates = [Group([core], rate), Group([p], self.hyper.relation_learning_rate, plain=True)]
        loss = self.descend(groups=rates, objective=objective, least=1)  # see _objective
        _set(weights, personal())
        self.state.save(get_arrays(self.model))
        _set(weights, core)
        own = get_arrays(self.model)
        self.state.save(own, CORE)
        return Answer(own | {RELATIONS: p.detach().cpu().numpy()}, len(self.data.train), {"loss": loss})

    def schedule(self) -> float:
        """Return λ(r) of this round: 1 in the first round, 0 from the L-th on."""
        past, rounds = self.round - 1, self.hyper.scheduler_rounds
        if past >= rounds:
            return 0.0
        if self.hyper.scheduler == "cosine":
            return (math.cos(math.pi * past / rounds) + 1) / 2
        return float(LEAST ** (past / rounds))

    def _objective(
        self, weights: Sequence[nn.Parameter], personal: Callable[[], Tensor], distance: Callable[[], Tensor]
    ) -> Objective:
        """Return F_i(v_i) + λ(r)·μ/2·‖p_i − p_0‖² as a function of w_i and p_i.

        The derivatives follow from ∇F_i(v_i), because v_i is linear in w_i and in p_i.

        Args:
            weights: the network's trained parameters.
            personal: returns v_i as a vector, differentiable in w_i and p_i.
            distance: returns ‖p_i − p_0‖².
        """
        x, y = self.data.train.x, self.data.train.y
        lone = has_lone_channels(self.model, x[:1])
        pull = self.hyper.regularization * self.schedule() / 2

        def objective(rows: Tensor) -> Tensor:
            v = personal()
            _set(weights, v)
            for weight in weights:
                weight.requires_grad_()  # the training loop steps along w_i and p_i instead
            if lone:  # batch norm has no statistics of a single example
                self.model.train(len(rows) > 1)
            loss = cross_entropy(self.model(x[rows]), y[rows])
            slope = torch.cat([gradient.flatten() for gradient in gradients(loss, weights)])
            linear = slope @ v
            return loss.detach() + linear - linear.detach() + pull * distance()

        return objective

    def _first(self, received: Arrays, relations: NDArray[np.float32]) -> Arrays:
        """Return the first core model: the mean of all, which is what was received, combined, over 1 − p_ii."""
        p = relations.astype(np.float64)
        unlearned = frozen(self.model)
        first = dict(self.initial)
        for name, sent in received.items():
            if name not in unlearned:
                total = np.tensordot(p[1:], sent[: len(p) - 1], axes=1) + sent[len(p) - 1 :].sum(
                    axis=0, dtype=np.float64
                )
                first[name] = (total / (1 - p[0])).astype(sent.dtype)
        return first


@torch.no_grad()
def _set(weights: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copy a vector (d,) into the parameters."""
    for weight, part in zip(weights, vector.split([weight.numel() for weight in weights]), strict=True):
        weight.copy_(part.view_as(weight))
