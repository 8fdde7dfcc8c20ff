"""A bank of models, server side: the server keeps the last model of every client that has trained, on its own disk.

Methods of this family send a client a mixture of other clients' models, or some of these models themselves. Memory
holds the models of a cohort, what its clients are sent, and a few others at a time, and one number for each client.
Files have versions, as the clients' own states have (``clients/core/state.py``), so that a resumed run reads the models
of its checkpoint.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.state import ClientState
from florilegium.clients.node.settling import FLUSHES
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages

log = logging.getLogger("flwr")

FOLDER = "bank"
"""Folder in a run's folder, with a folder for each client."""
READ_AT_ONCE = 16
"""Number of models that are read and combined together; limits the server's memory."""


MODELS_REACH_CLIENTS = Messages(
    "single",
    features="whole",
    individual="the server keeps every client's own model, and sends it to other clients as it is",
)
"""Of methods that send clients the models of single other clients."""


class Banked(CohortStrategy):
    """Base strategy of the family: the bank, and the mean of its models, which is the run's global model.

    A client that has not trained yet is treated as if the mean were its model.

    Attributes:
        members: the weight of each client with a model in the bank: its number of training examples, or 1 (key
            ``weighting``); in the order in which they first trained.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.members: dict[str, float] = {}

    @abstractmethod
    def train_cohort(self, round: Round, model: Arrays, cohort: Sequence[str]) -> Outcome:
        """Have the cohort train; return its models, stacked, under the names of the network's arrays."""

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train, put its models into the bank, and return the new mean of the bank."""
        outcome = self.train_cohort(round, model, round.sample())
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        total = {name: sum(self.members.values()) * array.astype(np.float64) for name, array in model.items()}
        flushes = []
        with ThreadPoolExecutor(FLUSHES) as disk:
            for row, client in enumerate(outcome.clients):
                new = {name: outcome.arrays[name][row] for name in model}
                if client in self.members:
                    _add(total, self.load(round, client), -self.members[client])
                self.members[client] = self.weight(client)
                _add(total, new, self.members[client])
                state = self._state(round, client)
                state.save(new)
                if change := state.draft():
                    flushes.append(disk.submit(change.publish))
        for flush in flushes:
            flush.result()
        weight = sum(self.members.values())
        return {name: (array / weight).astype(model[name].dtype) for name, array in total.items()}

    def weight(self, client: str) -> float:
        """Return a client's weight in the mean of the bank."""
        return self.clients.dues([client])[client]

    # ------------------------------------------------------------------------------- reading the bank

    def last(self, round: Round, model: Arrays) -> Callable[[str], Arrays]:
        """Return what gives the last model of a client, from which its next one must not be too far."""
        return lambda client: self.load(round, client) if client in self.members else model

    def load(self, round: Round, client: str) -> Arrays:
        """Return the model of a client in :attr:`members`.

        Raises:
            RunError: if its file has been deleted.
            DataError: if its file is damaged.
        """
        state = self._state(round, client)
        if (found := state.load()) is None:
            raise RunError(f"the model of client {client} is missing in {state.own.folder}; start a new run")
        return found

    def chunks(self, round: Round) -> Iterator[tuple[slice, Arrays]]:
        """Yield all models of the bank in the order of :attr:`members`, ``READ_AT_ONCE`` at a time.

        Each is a range of positions in that order, and the models' arrays, stacked along a new first axis.
        """
        clients = list(self.members)
        for first in range(0, len(clients), READ_AT_ONCE):
            models = [self.load(round, client) for client in clients[first : first + READ_AT_ONCE]]
            stacked = {name: np.stack([model[name] for model in models]) for name in models[0]}
            yield slice(first, first + len(models)), stacked

    def combine(self, round: Round, model: Arrays, coefficients: NDArray[np.float64]) -> Arrays:
        """Return linear combinations of the models in the bank, computed in double precision.

        Args:
            round: the round.
            model: the mean of the bank.
            coefficients: (c, n + 1): for each combination the factor of each member's model, and that of the mean.

        Returns:
            The combinations along a first axis of length c, in the model's types.
        """
        totals = {
            name: np.multiply.outer(coefficients[:, -1], array, dtype=np.float64) for name, array in model.items()
        }
        if coefficients[:, :-1].any():
            for positions, stacked in self.chunks(round):
                for name, total in totals.items():
                    total += np.tensordot(coefficients[:, positions], stacked[name].astype(np.float64), axes=1)
        return {name: total.astype(model[name].dtype) for name, total in totals.items()}

    def deal(self, round: Round, model: Arrays, choices: Sequence[Sequence[str | None]]) -> Arrays:
        """Return the models that clients are to receive, as arrays (c, m, *shape); each is read only once.

        Args:
            round: the round.
            model: the mean of the bank.
            choices: for each client the m members whose models it receives; None stands for the mean.
        """
        count = len(choices[0]) if choices else 0
        dealt = {name: np.empty((len(choices), count, *array.shape), array.dtype) for name, array in model.items()}
        places: dict[str | None, list[tuple[int, int]]] = {}
        for row, chosen in enumerate(choices):
            for column, client in enumerate(chosen):
                places.setdefault(client, []).append((row, column))
        for client, where in places.items():
            found = model if client is None else self.load(round, client)
            rows, columns = (list(axis) for axis in zip(*where, strict=True))
            for name, array in dealt.items():
                array[rows, columns] = found[name]
        return dealt

    def _state(self, round: Round, client: str) -> ClientState:
        return round.kept(FOLDER, client)

    # ------------------------------------------------------------------------------------ checkpoints

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return who is in the bank; the models themselves are files of their own."""
        return {}, {"members": self.members}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore who is in the bank."""
        self.members = dict(facts["members"])


def _add(total: Arrays, model: Arrays, weight: float) -> None:
    """Add weight·model to ``total`` in place."""
    for name, array in total.items():
        array += weight * model[name].astype(np.float64)
