"""pFedHN, server side (Shamsian et al. 2021, Algorithm 1): a hypernetwork and a learned descriptor for every client.

A round sends θ_i = h(v_i; η_h) and receives Δθ_i; η_h and the v_i of the cohort then take a step along the
backpropagated Δθ_i. A client that has never trained starts from a descriptor drawn from the run's seed; before a test,
some exchanges fit it to the client while the hypernetwork stays fixed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from florilegium.clients.core.optimizers import Optimizer
from florilegium.clients.hyper.hypernetworks import PFedHNHyper
from florilegium.common.seeds import torch_generator
from florilegium.models.parameters import Arrays, part
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.generated import HYPERNETWORK, Generated

log = logging.getLogger("flwr")
Descriptor = tuple[Tensor, Optimizer]


class PFedHN(Generated):
    """Trains a hypernetwork, and a descriptor for each client, on the server."""

    messages = Messages("single", features=HYPERNETWORK)
    hyper: PFedHNHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._optimizer = self.make_optimizer(list(self.hypernetwork.parameters()))
        self._descriptors: dict[str, Descriptor] = {}  # v_i of the clients that have trained

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out a round, which trains the cohort's descriptors together with the hypernetwork."""
        cohort = round.sample()
        own = {client: self._descriptors.get(client) or self._begin(client) for client in cohort}
        v = _values(own, cohort)
        outcome, made, Δθ = self.adapt(round, cohort, v)
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        parameters, λ_h = list(self.hypernetwork.parameters()), self.hyper.hypernetwork_penalty
        *Δη_h, Δv = self.descent(made, Δθ, [*parameters, v])
        trained = {client: own[client] for client in outcome.clients}
        self._move(trained, dict(zip(cohort, Δv, strict=True)), round.number)
        self._descriptors |= trained
        updates = [(η, Δ.div_(len(trained)), λ_h) for η, Δ in zip(parameters, Δη_h, strict=True)]
        self.step(self._optimizer, updates, round.number)
        return model

    def describe(self, round: Round, clients: Sequence[str], model: Arrays) -> tuple[list[str], Tensor, dict[str, str]]:
        """Return the clients' descriptors.

        For labeled clients that have never trained, they are fitted first, and not kept.
        """
        own = {client: self._descriptors.get(client) or self._begin(client) for client in clients}
        new = [c for c in clients if c not in self._descriptors and self.clients[c].labeled]
        failures: dict[str, str] = {}
        for repetition in range(1, self.hyper.new_client_exchanges + 1):
            new = [client for client in new if client not in failures and client not in round.spent]
            if new:
                v = _values(own, new)
                outcome, made, Δθ = self.adapt(round, new, v, repetition=repetition, evaluation=True, out_of=0)
                if outcome.clients:
                    [Δv] = self.descent(made, Δθ, [v])
                    fitted = {client: own[client] for client in outcome.clients}
                    self._move(fitted, dict(zip(new, Δv, strict=True)), round.number)
                # A client that has spent its privacy budget is tested with the descriptor fitted so far.
                failures |= {c: why for c, why in outcome.failures.items() if c not in round.spent}
        served = [client for client in clients if client not in failures]
        return served, _values(own, served).detach() if served else torch.empty(0, self.size), failures

    # ----------------------------------------------------------------------------------------- details

    def _begin(self, client: str) -> Descriptor:
        """Return a client's initial descriptor, drawn from a standard normal, and its optimizer."""
        v = torch.randn(self.size, generator=torch_generator(self.settings.seed, "descriptor", client)).requires_grad_()
        return self._with_optimizer(v)

    def _with_optimizer(self, v: Tensor) -> Descriptor:
        """Return a descriptor (l,) with an optimizer of its own."""
        return v, self.make_optimizer([v], self.hyper.descriptor_learning_rate)

    def _move(self, descriptors: Mapping[str, Descriptor], Δv: Mapping[str, Tensor], server_round: int) -> None:
        """Take an optimizer step on each descriptor along its update Δv."""
        for client, (v, optimizer) in descriptors.items():
            self.step(optimizer, [(v, Δv[client], self.hyper.descriptor_penalty)], server_round)

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers of the hypernetwork and of the descriptors, by name."""
        return {"hypernetwork": self._optimizer} | {f"descriptor/{c}": o for c, (_, o) in self._descriptors.items()}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the hypernetwork, the descriptors, and the state of their optimizers."""
        arrays, facts = super().state()
        return arrays | {f"descriptor/{c}": v.detach().numpy() for c, (v, _) in self._descriptors.items()}, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        for client, array in part(arrays, "descriptor/").items():
            self._descriptors[client] = self._with_optimizer(torch.from_numpy(array).requires_grad_())
        super().restore(arrays, facts)


def _values(descriptors: Mapping[str, Descriptor], clients: Sequence[str]) -> Tensor:
    """Return a copy of the clients' descriptors as one tensor (c, l) that requires gradients."""
    return torch.stack([descriptors[client][0].detach() for client in clients]).requires_grad_()
