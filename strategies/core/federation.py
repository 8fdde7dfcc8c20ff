"""A federation during a run: its clients and nodes, folder, clock, counters, and the cohorts that are drawn from it.

The run's machinery works on it; a method sees its clients (:class:`Population`) and its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from uuid import uuid4

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.network import network_for
from florilegium.clients.core.own_files import OwnFiles
from florilegium.clients.core.reports import ALWAYS, COST, GOAL, HOSTS, Reports, reports_of, validation
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Reply
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import Section
from florilegium.models.frozen import Frozen
from florilegium.models.parameters import Arrays, parts_of
from florilegium.partitions.loading import dataset_of, task_of
from florilegium.partitions.remarks import Remarks
from florilegium.strategies.core.health import Attendance
from florilegium.strategies.core.initial import Start
from florilegium.strategies.core.telemetry import Telemetry
from florilegium.strategies.exchange.clock import Clock
from florilegium.strategies.exchange.population import Population
from florilegium.strategies.exchange.pulling import Pulls
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.exchange.roster import Roster
from florilegium.strategies.folder.run_folder import Checkpoint, RunFolder
from florilegium.strategies.layers.applied import opened
from florilegium.strategies.layers.example_privacy import ClientAccounts
from florilegium.strategies.settings.server import ServerSettings


@dataclass(frozen=True)
class Setup:
    """Everything that a strategy is built from.

    Attributes:
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        client: the method's client class; requests are checked against its phases.
        roster: the clients and the nodes that host them.
        run: the run's folder.
        origins: returns hashes of what the run is made from, for devices or for a simulation; the run's folder keeps
            them.
        provenance: returns what carries the run out, given the roster; the run's folder keeps it.
        chance: returns the main figure of the best constant prediction for the examples on which simulated clients are
            evaluated; NaN if it is not known.
        remarks: returns what is to be said of the network, and of simulated clients' data, given whether clients are
            devices.
        network: all arrays of the network as the run's seed makes it, and the frozen ones of these; None: it is built
            when it is needed.
        buffers: the names of those that are buffers.
    """

    settings: ServerSettings
    hyper: Section
    client: type[BaseClient]
    roster: Roster
    run: RunFolder
    origins: Callable[[bool], Mapping[str, str]] = lambda deployed: {}
    provenance: Callable[[Roster], Mapping[str, Any]] = lambda roster: {}
    chance: Callable[[Collection[str]], float] = lambda clients: math.nan
    remarks: Callable[[bool], Remarks] = lambda deployed: Remarks()
    network: tuple[Arrays, Frozen] | None = None
    buffers: Sequence[str] = ()


class Method(Protocol):
    """What a federation asks of the method that it carries out (:class:`florilegium.strategies.core.hooks.Hooks`)."""

    def trainable(self) -> list[str]:
        """Return the ids of the clients that may train."""

    def groups(self) -> dict[str, list[str]]:
        """Return the clients to evaluate, by group."""

    def is_final(self, server_round: int) -> bool:
        """Return whether ``server_round`` is the last one, to which ``final-participation`` applies."""

    def sample(self, round: Any) -> Cohort:
        """Draw the cohort of a :class:`florilegium.strategies.core.round.Round`."""

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Raise ``ValueError`` if a node's reply cannot be true."""


class Federation:
    """The state of a run that is none of its method's own.

    Args:
        setup: configuration, client class, roster and folder of the run.
        method: what is carried out.

    Attributes:
        settings, client, roster, run, origins, provenance, chance, remarks, buffers: those of :class:`Setup`.
        task: what is learned.
        clients: what a method sees of the roster.
        bytes_down, bytes_up: bytes of arrays that training has sent to clients and received from them so far.
        checkpoint_round: the round of the last checkpoint, 0 before the first.
        best_round: the round of the models that key ``keep`` keeps so far; None: the last ones are kept.
        telemetry: counts exchanges; None outside of a run.
        pulls: the pulls of replies of devices that are not waited for.
        clock: the virtual clock of a simulation with a fleet; None without one.
        layers: what is done to all exchanges: bounds, noise, compression and so on, in their order.
        accounts: privacy costs that clients report, with example-level privacy; else empty.
        attendance: the rounds in which clients were asked to train, and those in which they failed.
        identity: distinguishes the run from others of its name.
        lineage: the rounds from which the run was resumed so far.
    """

    def __init__(self, setup: Setup, method: Method) -> None:
        self.settings = setup.settings
        self.task = task_of(setup.settings)
        self.client = setup.client
        self.roster = setup.roster
        self.run = setup.run
        self.origins = setup.origins
        self.provenance = setup.provenance
        self.chance = setup.chance
        self.remarks = setup.remarks
        self.buffers = setup.buffers
        self.pulls = Pulls()
        self.method = method
        self.bytes_down = 0
        self.bytes_up = 0
        self.checkpoint_round = 0
        self.best_round: int | None = None
        self.telemetry: Telemetry | None = None
        self.clock = Clock(self.settings) if self.settings.fleet.on else None
        self.clients = Population(self.settings, self.roster, self.clock)
        self.accounts = ClientAccounts()
        self.attendance = Attendance()
        self.identity = uuid4().hex
        self.lineage: list[int] = []
        self.layers = opened(self)
        self._network = setup.network

    @cached_property
    def start(self) -> Start:
        """What the run starts from."""
        s = self.settings
        return Start(s, self.run.path, *(self._network or parts_of(network_for(dataset_of(s), s, s.seed))))

    @property
    def network(self) -> Arrays:
        """All arrays of the network as the run's seed makes it, the frozen ones too: its blocks and shapes."""
        return self.start.whole

    @property
    def hidden(self) -> bool:
        """Whether the server sees no single client's reply."""
        return any(layer.hides for layer in self.layers)

    @property
    def reported(self) -> Reports:
        """The numbers that clients may report in this run, with their ranges."""
        s = self.settings
        return {
            **ALWAYS, **HOSTS, **reports_of(self.client, self.task),
            **(validation(self.task) if s.validation_fraction else {}), **(COST if s.privacy.unit == "example" else {}),
            **(GOAL if s.attack != "none" else {}),
        }  # fmt: skip

    def kept(self, folder: str, client: str, server_round: int) -> ClientState:
        """Return the arrays that the server keeps of a client in the run's folder, as they are in a round.

        Args:
            folder: name of a folder in the run's folder.
            client: the client's id.
            server_round: the round.
        """
        own = OwnFiles.within(self.run.path / folder, client)
        return ClientState(
            own, server_round, self.lineage, self.checkpoint_round, self.identity, self.start.frozen, self.best_round
        )

    @property
    def exchanged(self) -> Sequence[str]:
        """The names of what training changes of the network."""
        return [*self.start.built.rest(self.start.whole)]

    # ---------------------------------------------------------------------------------------- cohorts

    def cohort_size(self, server_round: int) -> int:
        """Return the size of a round's cohort; with client-level privacy, the expected size."""
        share, size = self.settings.participation, self.settings.cohort_size
        if self.settings.final_participation and self.method.is_final(server_round):
            share, size = self.settings.final_participation, 0
        count = len(self.trainable())
        return min(size or max(1, round(share * count)), count)

    def sample(self, server_round: int) -> Cohort:
        """Draw the round's cohort uniformly without replacement; the same for every method with the same seed.

        With client-level privacy each client takes part independently at random, from a secret generator, or in the
        rounds of its slot, unless cohorts are to have a fixed size.
        """
        clients = self.trainable()
        if self.accounts.spent:
            clients = [client for client in clients if client not in self.accounts.spent]
        size = min(self.cohort_size(server_round), len(clients))
        for layer in self.layers:
            if (drawn := layer.sample(clients, size, server_round)) is not None:
                return Cohort(drawn, len(drawn))
        return self.draw(clients, size, server_round)

    def draw(self, clients: Sequence[str], needed: int, *path: int, wait: bool = True) -> Cohort:
        """Draw clients uniformly without replacement for ``needed`` replies, of those online.

        Where devices differ in speed, ``oversample`` times as many are drawn as replies are needed.

        Args:
            clients: those that may be drawn.
            needed: number of replies.
            path: numbers that name the random draw, of which the first is the round.
            wait: whether to wait if nobody is online, rather than to draw nobody.
        """
        rng = numpy_generator(self.settings.seed, "cohort", *path)
        count = self.asked(needed, len(clients))
        if self.clock is not None:
            chosen = self.clock.draw(clients, count, rng, wait=wait)
        else:
            chosen = [int(i) for i in rng.choice(len(clients), size=count, replace=False)]
        return Cohort((clients[i] for i in sorted(chosen)), min(needed, len(chosen)))

    def asked(self, needed: int, of: int) -> int:
        """Return how many clients are asked for ``needed`` replies: ``oversample`` times as many, of devices."""
        timed = self.roster.deployed or self.clock is not None
        return min(math.ceil(self.settings.oversample * needed) if timed else needed, of)

    def shares(self) -> list[float]:
        """Return for each round of the run the share of the trainable clients that are asked to train."""
        count, rounds = max(1, len(self.trainable())), range(1, self.settings.rounds + 1)
        return [self.asked(self.cohort_size(r), count) / count for r in rounds]

    def trainable(self) -> list[str]:
        """Return the clients that may train."""
        return self.method.trainable()

    def evaluated(self) -> list[str]:
        """Return the clients to evaluate, one group after the other."""
        return [client for clients in self.method.groups().values() for client in clients]

    def can_pay(self) -> bool:
        """Return whether some client may train and has not spent its privacy budget."""
        return not self.accounts.spent >= {*self.trainable()}

    # ------------------------------------------------------------------------------------- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the state for checkpoints; JSON values."""
        own = {
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "identity": self.identity,
            "lineage": self.lineage,
            "deployed": self.roster.deployed,
            "attendance": self.attendance.facts(),
            "clock": None if self.clock is None else self.clock.facts(),
        }
        own |= {"frozen": self.start.frozen.hash} if self.start.frozen.arrays else {}
        for layer in self.layers:
            own |= layer.facts()
        return own

    def take_back(self, checkpoint: Checkpoint) -> None:
        """Restore the state that :meth:`facts` returned.

        Raises:
            KeyError: if an earlier version wrote the checkpoint, without facts that this version needs.
        """
        facts = checkpoint.facts
        self.identity = facts["identity"]
        self.bytes_down, self.bytes_up = facts["bytes_down"], facts["bytes_up"]
        self.lineage = [*facts["lineage"], checkpoint.round]
        self.checkpoint_round = checkpoint.round
        self.attendance.take_back(facts.get("attendance", {}))
        if self.clock is not None:
            self.clock.take_back(facts["clock"])
        for layer in self.layers:
            layer.take_back(facts)
