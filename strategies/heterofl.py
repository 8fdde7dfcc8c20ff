"""HeteroFL, server side (Diao, Ding, Tarokh 2021): clients of different size train nested parts of one network.

A client of capacity r receives the first ⌈r·C⌉ of the C channels of every layer of the global model w_t. For each
entry j of the model, with M_j the clients of the cohort that hold it and FedAvg's weights p_k,
Δ_j = Σ_{k∈M_j} p_k·(w_k − w_t)_j / Σ_{k∈M_j} p_k; entries that nobody holds stay as they are. Running statistics of
batch norm are kept for each capacity apart, because activations depend on the width.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.core.network import check_nothing_frozen, network_for
from florilegium.clients.core.reports import measured
from florilegium.clients.heterofl import FULL
from florilegium.clients.hyper.capacity import CapacityHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.dry_run import random_inputs
from florilegium.models.parameters import Arrays, exchanged, get_arrays, is_statistic, num_bytes
from florilegium.models.width import Entries, axes_of, check, entries, taken
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.server_step import refuse_optimizers
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Group
from florilegium.strategies.families.sized import Sized

log = logging.getLogger("flwr")


class HeteroFL(Sized):
    """FedAvg over sub-networks: every entry is averaged over the clients that hold it.

    Attributes:
        statistics: for each capacity that has trained, running statistics of batch norm, in the whole network's shapes.
    """

    messages = Messages("groups", features="whole")
    hyper: CapacityHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s, spec = self.settings, dataset_of(self.settings)
        refuse_optimizers(s, "averages each entry over the clients that hold it")
        network = network_for(spec, s, s.seed)
        check_nothing_frozen(network, s.model, s.method)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in exchanged(network).items()}
        self.statistics: dict[float, Arrays] = {}
        self._bytes: dict[float, int] = {}  # of the sub-network of each capacity
        smallest = min(level if level < 1 else 0.5 for level in self.hyper.law[0])
        try:
            self._axes = axes_of(network)
            widest = max(axis.channels for axes in self._axes.values() for axis in axes if axis is not None)
            check(network, random_inputs(spec.shape, codes=spec.codes), self.entries(smallest, widest))
        except ValueError as error:
            raise ConfigurationError(
                f"model: '{s.model}' {error}, so that method '{s.method}' cannot divide it; docs/models.md says which "
                "networks it can"
            ) from error

    # --------------------------------------------------------------------------------- sub-networks

    def first_channel(self, server_round: int) -> int:
        """Return the first channel that sub-networks of this round have, modulo a layer's number of channels."""
        return 0

    def entries(self, capacity: float, server_round: int) -> Entries:
        """Return the entries of the model that a client of this capacity holds in a round."""
        return entries(self._axes, self._shapes, capacity, self.first_channel(server_round))

    def _with_statistics(self, model: Arrays, capacity: float) -> Arrays:
        return model | self.statistics.get(capacity, {})

    def _group(self, clients: Sequence[str], model: Arrays, capacity: float, round: Round) -> Group:
        """Return clients of this capacity with the sub-network that they are sent in a round."""
        arrays = self._with_statistics(model, capacity)
        return Group(clients, taken(arrays, self.entries(capacity, round.number)), {"capacity": capacity})

    def network_bytes(self, client: str) -> int:
        """Return the size of the sub-network that a simulated client trains; it is the same in all rounds."""
        capacity = self.capacity(client)
        if capacity not in self._bytes:
            whole = get_arrays(network_for(dataset_of(self.settings), self.settings, self.settings.seed))
            self._bytes[capacity] = num_bytes(taken(whole, self.entries(capacity, 1)))
        return self._bytes[capacity]

    # ------------------------------------------------------------------------------------- training

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train its sub-networks, and return the new model, with the statistics of whole networks."""
        return self._with_statistics(super().train_round(round, model), 1.0)

    def mean_update(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train its sub-networks; return for each entry the mean update of its holders."""
        cohort = round.sample()
        sizes = self.cohorts(cohort)
        groups = [self._group(members, model, capacity, round) for capacity, members in sizes.items()]
        outcomes = round.ask_groups("train", groups, reduce="delta")
        total, weight = ({name: np.zeros(array.shape) for name, array in model.items()} for _ in range(2))
        for capacity, outcome in zip(sizes, outcomes, strict=True):
            chosen = self.entries(capacity, round.number)
            arrays = self._with_statistics(model, capacity)
            if not outcome.clients:
                continue
            own = {name: array.copy() for name, array in arrays.items() if is_statistic(name)}
            for name, index in chosen.items():
                total[name][index] += outcome.arrays[name]
                weight[name][index] += outcome.weight
                if name in own:  # differences from the capacity's statistics, not from the model's
                    total[name][index] += outcome.weight * (arrays[name] - model[name])[index]
                    own[name][index] += outcome.arrays[name] / outcome.weight
            self.statistics[capacity] = own
        whole = round.require(joined(outcomes), cohort.wanted)
        log.info("round %d: loss %.4g, clients %d", round.number, whole.mean("loss"), len(whole.clients))
        return {n: np.divide(total[n], weight[n], out=np.zeros_like(total[n]), where=weight[n] > 0) for n in model}

    # ----------------------------------------------------------------------------------- evaluation

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have each client test its sub-network; in a simulation, or where devices hold it, also the whole network."""
        sizes, full = self.by_size(clients), Outcome([], {}, {})
        if sizes.keys() - {1.0}:  # else both are the same
            able = sizes.get(1.0, []) if self.clients.deployed else clients
            whole = self._with_statistics(model, 1.0)
            if able:
                full = round.ask("full", able, send=whole, reduce="sum", evaluation=True, out_of=0)
        groups = [self._group(members, model, capacity, round) for capacity, members in sizes.items()]
        outcomes = round.ask_groups("test", groups, reduce="sum", evaluation=True)
        outcome = round.require(joined(outcomes, clients), len(clients))
        for name in measured(self.task, FULL) if full.clients else ():
            told = full.metrics.get(name, np.full(len(full.clients), np.nan))
            values = dict(zip(full.clients, told, strict=True))
            outcome.metrics[name] = np.array([values.get(client, np.nan) for client in outcome.clients])
        return outcome

    # ---------------------------------------------------------------------------------- checkpoints

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the statistics of each capacity, for checkpoints."""
        arrays, facts = super().state()
        own = {f"{number}/{n}": a for number, one in enumerate(self.statistics.values()) for n, a in one.items()}
        return arrays | own, facts | {"capacities": [*self.statistics]}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the statistics of each capacity."""
        for number, capacity in enumerate(facts["capacities"]):
            own = {name: array.copy() for name, array in arrays.items() if name.startswith(f"{number}/")}
            self.statistics[float(capacity)] = {name.partition("/")[2]: array for name, array in own.items()}
