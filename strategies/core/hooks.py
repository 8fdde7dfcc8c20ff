"""What a method may override on the server's side, and what it is given.

A method overrides :meth:`Hooks.train_round`, one round in straight-line code, and other methods as needed.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, num_bytes
from florilegium.strategies.core.federation import Federation, Setup
from florilegium.strategies.core.initial import replaced
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.evaluation import Evaluation, held_out_figures, summarise, watched
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.population import GROUPS
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.exchange.roster import Member
from florilegium.strategies.folder.run_folder import Checkpoint, earlier_version

log = logging.getLogger("flwr")


class Hooks:
    """A method on the server's side.

    Args:
        setup: configuration, client class, roster and folder of the run.

    Attributes:
        settings, hyper: those of :class:`Setup`.
        task: what is learned.
        clients: the clients that take part.
        federation: the run's state, for its machinery.
    """

    models: ClassVar[Literal["global", "own", "none"]] = "global"
    """What clients predict with: a model that all receive, others that they have or that are made for them, or none."""

    def __init__(self, setup: Setup) -> None:
        self.settings = setup.settings
        self.hyper = setup.hyper
        self.federation = Federation(setup, self)
        self.task = self.federation.task
        self.clients = self.federation.clients

    # ------------------------------------------------------------------------------------------ start

    def unfit(self, client: Member) -> str:
        """Return why a client cannot take part in this run, "" if it can.

        By default: too few training examples, or a device too small for the network.
        """
        if client.capacity < 1 and type(self).network_bytes is Hooks.network_bytes:
            return (
                f"its device holds models of capacity {client.capacity:g} alone; methods that send such have a table "
                "capacity or ranks, as heterofl and flexlora do"
            )
        if client.train < self.settings.min_examples:
            return f"it has {client.train} training examples, fewer than min-examples = {self.settings.min_examples}"
        clock = self.federation.clock
        if clock is None:
            return ""
        return clock.lacks_memory(
            client.id, self.network_bytes(client.id), num_bytes(self.federation.start.built.arrays)
        )

    def network_bytes(self, client: str) -> int:
        """Return the size of what a simulated client trains. By default: the run's network, without what is frozen.

        A method that sends clients no more of the network than their capacity allows overrides it; otherwise devices
        that cannot hold all of the network are unfit.
        """
        return self._network_bytes

    @cached_property
    def _network_bytes(self) -> int:
        start = self.federation.start
        return num_bytes(start.built.rest(start.whole))

    def check_roster(self) -> None:
        """Check that the method's settings are possible with the present clients. By default nothing is checked.

        Raises:
            ConfigurationError: if they are not.
        """

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the server's initial arrays, given those of the network. By default: all of the network."""
        return arrays

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Return the server's initial arrays if ``init`` names an earlier run.

        Args:
            network: the arrays of the newly initialised network.
            trained: the earlier run's last checkpoint. Its model may be a part of the network, the shared blocks.

        Raises:
            ConfigurationError: if this method cannot start from the earlier run.
        """
        if self.models != "global":
            raise ConfigurationError(
                f"init: method '{self.settings.method}' sends no model, so there is none to start from"
            )
        if own := self.federation.client.own_start(self.hyper):
            raise ConfigurationError(
                f"init: with method '{self.settings.method}' and its present keys {own} would start from this run's "
                "seed, and all else from what init names; leave it empty"
            )
        return self.server_part(replaced(self.settings, network, trained.arrays))

    def summary(self) -> None:
        """Log what is about to run: method, dataset and what was inferred of it, clients, nodes and rounds."""
        s, federation = self.settings, self.federation
        for line in (said := federation.remarks(federation.roster.deployed)).lines:
            log.info("%s", line)
        for line in said.warnings:
            log.warning("%s", line)
        log.info(
            "%s on %s: %s, %d nodes, cohort of %d, %d rounds", s.method, s.dataset, self.clients.described(),
            len(federation.roster.nodes), federation.cohort_size(1), s.rounds,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------- training

    def trainable(self) -> list[str]:
        """Return the ids of the clients that may train. By default: the seen clients with labels."""
        return self.clients.ids("seen")

    def sample(self, round: Round) -> Cohort:
        """Draw the round's cohort (:meth:`florilegium.strategies.core.federation.Federation.sample`)."""
        return self.federation.sample(round.number)

    @abstractmethod
    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out one round and return the new global model."""

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Check a node's reply by the method's own rules; its names, ranges, shapes and norms are in order already.

        By default nothing is checked.

        Args:
            phase: what its clients were asked to do.
            sent: the arrays that they were sent.
            reply: what it says.

        Raises:
            ValueError: if it cannot be true; the reply is then not used.
        """

    def is_final(self, server_round: int) -> bool:
        """Return whether ``server_round`` is the last one, to which ``final-participation`` applies."""
        return server_round == self.settings.rounds

    def finished(self, server_round: int) -> bool:
        """Return whether the run ends early, with ``server_round``.

        By default: after ``patience`` evaluations in a row without a new best median of the validation losses, or of
        the main figure that key ``metrics`` chooses.
        """
        evaluations = self.federation.run.metrics.evaluations
        if not self.settings.patience or not evaluations:
            return False
        name, higher = watched(self.task)
        values = [value for _, value in held_out_figures(evaluations, self.task)]
        if not values:
            raise ConfigurationError("patience: no client has an example to validate with; raise validation-fraction")
        stale = len(values) - 1 - int(np.argmax(values) if higher else np.argmin(values))
        if stale < self.settings.patience:
            return False
        said = f"{name.replace('_', ' ')} has not {'risen' if higher else 'fallen'}"
        log.info("round %d is the last: the %s in %d evaluations", server_round, said, stale)
        return True

    # ------------------------------------------------------------------------------------- evaluation

    def groups(self) -> dict[str, list[str]]:
        """Return the clients to evaluate, by group: all of each, or a fixed sample of ``evaluate-clients``.

        Real devices are all evaluated, since each keeps the model of its last test; attackers of a simulation are not.
        Groups have at least one client.
        """
        found = {}
        for group in GROUPS:
            clients = self.clients.ids(group, tested=not self.clients.deployed)
            if not self.clients.deployed:
                limit = self.settings.evaluate_clients
                if limit and limit < len(clients):
                    rng = numpy_generator(self.settings.seed, "evaluate", group)
                    clients = [clients[i] for i in sorted(rng.choice(len(clients), size=limit, replace=False))]
            for layer in self.federation.layers:
                clients = layer.honest(clients)
            if clients:
                found[group] = clients
        return found

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their models; return their metrics. By default: one exchange of the phase ``test``."""
        sent = model if self.models == "global" else None
        return round.ask("test", clients, reduce="sum", send=sent, evaluation=True)

    def figures(self, outcome: Outcome) -> Evaluation:
        """Return the figures of a measured outcome: a summary of each group of clients, and those of each client."""
        groups = np.array([self.clients[client].group for client in outcome.clients])
        if outcome.totals is not None:  # of one group, or of several that are measured alike
            group, lacking = min(groups, key=GROUPS.index), outcome.totals.lacking(self.task)
            return Evaluation({group: outcome.totals.figures(self.task)}, (), {group: lacking} if lacking else {})
        measured = {
            k: v for k, v in outcome.metrics.items() if k not in ("num-examples", "weight", "bytes-down", "bytes-up")
        }
        examples, epsilons = outcome.metrics["num-examples"], self.federation.accounts.epsilons
        rows: list[dict[str, object]] = []
        for i, client in enumerate(outcome.clients):
            member = self.clients[client]
            rows.append(
                {"client": client} | ({"name": member.name} if member.name else {})
                | {"group": groups[i], "train_examples": self.clients.trained_on(member),
                   "test_examples": int(examples[i])}
                | {name: float(values[i]) for name, values in measured.items() if name not in self.task.sums}
                | ({"epsilon": epsilons[client]} if client in epsilons else {})
            )  # fmt: skip
        return Evaluation({
            group: summarise({k: v[groups == group] for k, v in measured.items()}, examples[groups == group], self.task)
            for group in GROUPS
            if (groups == group).any()
        }, rows)  # fmt: skip

    # ------------------------------------------------------------------------------------------ state

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the method's state besides the model, for checkpoints: arrays, and facts (JSON values)."""
        return {}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""

    def report(self) -> dict[str, Any]:
        """Return the method's own block of ``summary.json``."""
        return {}


def resume(strategy: Hooks, checkpoint: Checkpoint) -> None:
    """Bring a strategy and its federation to the state of a checkpoint.

    Raises:
        RunError: if an earlier version wrote the checkpoint, without facts that this version needs.
    """
    with earlier_version(strategy.federation.run.name):
        strategy.federation.take_back(checkpoint)
        strategy.restore(checkpoint.own, checkpoint.facts["own"])
