"""Clusters as leaves of a tree of splits, which new clients descend by the directions of their updates (CFL, FL+HC).

A cluster is split by the updates Δθᵢ = θᵢ − θ of its clients after local training of its model θ. The tree keeps θ, and
for each branch c the mean direction d_c = mean Δθᵢ/‖Δθᵢ‖ over its clients, so that it does not grow with the number of
clients. A client that was not there when its cluster was split (a new client, above all) trains θ and goes to the
branch with the largest ⟨Δθ, d_c⟩, which is ‖Δθ‖ times its mean cosine similarity to the branch's clients (Sattler et
al. 2019, section on new clients, where it is the largest similarity). Clients without labels go to the largest cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.families.clustered import named
from florilegium.models.parameters import Arrays, part, shapes_of, without_statistics
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.families.clustered import Assigned, grouped

Matrix = NDArray[np.float64]
ROOT = 0
"""The cluster that all clients are in at first."""


class Splits(Assigned):
    """Base strategy of methods that split clusters by their clients' updates."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._branches: dict[int, list[int]] = {}  # of each split cluster
        self._models: dict[int, Arrays] = {}  # θ of each split cluster
        self._directions: dict[int, Arrays] = {}  # d_c of each branch

    def members(self, cluster: int) -> list[str]:
        """Return the clients that can train and are in a cluster; those without a place are in the root."""
        return [client for client in self.trainable() if self.places.get(client, ROOT) == cluster]

    def updates(self, round: Round, clients: Sequence[str], θ: Arrays, *, evaluation: bool = False) -> Outcome:
        """Have clients train θ; return their updates Δθᵢ, each array stacked along a new first axis.

        The server holds the updates of all these clients at once. Any number of them may fail.
        """
        outcome = round.ask(
            "train", clients, send=θ, reduce="stack", shapes=shapes_of(θ), evaluation=evaluation, out_of=0,
            base=lambda client: θ,
        )  # fmt: skip
        outcome.arrays = {name: array - θ[name] for name, array in outcome.arrays.items()}
        return outcome

    def split(self, cluster: int, θ: Arrays, updates: Outcome, branches: NDArray[np.int64], model: Arrays) -> Arrays:
        """Split a cluster into branches, whose models are θ moved by the mean update of their clients.

        Args:
            cluster: the cluster.
            θ: its model.
            updates: its clients' updates of θ.
            branches: the branch of each of these clients, 0, 1, …
            model: the models of all clusters.

        Returns:
            The models of all clusters after the split.
        """
        first = 1 + max([ROOT, *self._directions])
        unit = {n: a / _column(norms(gram(updates.arrays)), a) for n, a in without_statistics(updates.arrays).items()}
        self._models[cluster], self._branches[cluster] = θ, []
        model = {n: a for n, a in model.items() if n not in named(cluster, θ)}
        for branch in range(int(branches.max()) + 1):
            mine, number = branches == branch, first + branch
            weights = np.maximum(updates.metrics["weight"][mine], 1.0)  # an example's, whatever a device says
            sums = {name: np.tensordot(weights, array[mine], axes=1) for name, array in updates.arrays.items()}
            model |= named(number, self.moved(θ, sums, float(weights.sum())))
            self._directions[number] = {name: array[mine].mean(axis=0) for name, array in unit.items()}
            self._branches[cluster].append(number)
            self.places |= {client: number for client, own in zip(updates.clients, mine, strict=True) if own}
        return model

    def locate(
        self, round: Round, clients: Sequence[str], model: Arrays, *, evaluation: bool
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Return the leaves that clients are in or descend to, and the errors of clients that fail on the way."""
        places = {client: self.places.get(client, ROOT) for client in clients}
        failures: dict[str, str] = {}
        for client in clients:
            if not self.clients[client].labeled:
                places[client] = self.largest(model)
        while inner := {client: place for client, place in places.items() if place in self._branches}:
            for cluster, lost in grouped(inner).items():
                found = self.updates(round, lost, self._models[cluster], evaluation=evaluation)
                places |= dict(zip(found.clients, self._nearest(cluster, found.arrays), strict=True))
                failures |= found.failures
                places = {client: place for client, place in places.items() if client not in failures}
        if not evaluation:
            self.places |= places
        return places, failures

    def _nearest(self, cluster: int, updates: Arrays) -> list[int]:
        """Return for each client the branch of a cluster that its update is most similar to."""
        if not updates:
            return []
        branches, likeness = self._branches[cluster], list[Matrix]()
        for branch in branches:
            d = self._directions[branch]
            parts = [np.tensordot(updates[name], d[name], axes=d[name].ndim) for name in d]
            likeness.append(np.sum(parts, axis=0))
        return [branches[i] for i in np.argmax(likeness, axis=0)]

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the tree and the clients' places, for checkpoints."""
        arrays, facts = super().state()
        for kind, nodes in (("model", self._models), ("direction", self._directions)):
            arrays |= {f"{kind}/{node}/{name}": array for node, own in nodes.items() for name, array in own.items()}
        return arrays, facts | {"branches": [[node, *own] for node, own in self._branches.items()]}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the tree and the clients' places."""
        super().restore(arrays, facts)
        self._branches = {node: branches for node, *branches in facts["branches"]}
        self._models = {node: part(arrays, f"model/{node}/") for node in self._branches}
        branches = [branch for own in self._branches.values() for branch in own]
        self._directions = {branch: part(arrays, f"direction/{branch}/") for branch in branches}


def gram(updates: Arrays) -> Matrix:
    """Return the inner products ⟨Δθᵢ, Δθⱼ⟩ of stacked updates, (n, n)."""
    flat = (array.reshape(len(array), -1).astype(np.float64) for array in without_statistics(updates).values())
    total: Matrix = np.sum([array @ array.T for array in flat], axis=0)
    return total


def norms(products: Matrix) -> Matrix:
    """Return ‖Δθᵢ‖ given all inner products, (n,); at least the smallest positive number, for divisions."""
    smallest = np.finfo(np.float32).tiny
    return np.sqrt(np.maximum(np.diag(products), smallest))


def cosines(products: Matrix) -> Matrix:
    """Return the cosine similarities given all inner products, (n, n)."""
    length = norms(products)
    return products / np.outer(length, length)


def _column(values: Matrix, array: NDArray[Any]) -> NDArray[Any]:
    """Return ``values`` (n,) in a shape that divides the rows of ``array`` (n, …), in its type."""
    return values.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
