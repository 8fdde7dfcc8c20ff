"""The base strategy of all methods: it samples clients, not nodes, and carries out a run round by round.

A method overrides :meth:`CohortStrategy.train_round`, one round in straight-line code, and other methods as needed.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.compression.schemes import scheme_of
from florilegium.clients.core.network import network_for
from florilegium.clients.core.reports import ALWAYS, COST, HOSTS, VALIDATION, Reports, reports_of
from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import Section
from florilegium.models.parameters import Arrays, get_arrays, num_bytes
from florilegium.partitions.loading import dataset_of, decisions
from florilegium.strategies.core.buffer import PREFIX, Buffer
from florilegium.strategies.core.clock import Clock
from florilegium.strategies.core.evaluation import MEDIAN, Figures, summarise
from florilegium.strategies.core.example_privacy import ClientAccounts
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.flower import WithoutHooks
from florilegium.strategies.core.health import Attendance, unmeasured
from florilegium.strategies.core.initial import replaced
from florilegium.strategies.core.receipts import Receipts
from florilegium.strategies.core.requests import Cohort
from florilegium.strategies.core.robust import check_cohorts
from florilegium.strategies.core.roster import Member, Roster
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.rounds import Rounds
from florilegium.strategies.core.run_folder import Checkpoint, RunFolder, earlier_version
from florilegium.strategies.core.secure_record import SecureRecord, check_sizes
from florilegium.strategies.core.settings import ServerSettings
from florilegium.strategies.core.telemetry import Telemetry

if TYPE_CHECKING:
    from florilegium.strategies.core.client_privacy import ClientPrivacy

log = logging.getLogger("flwr")

GROUPS = ("seen", "unseen", "unlabeled")


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
        chance: returns the share of the most frequent class among the examples on which simulated clients are
            evaluated; NaN if it is not known.
    """

    settings: ServerSettings
    hyper: Section
    client: type[BaseClient]
    roster: Roster
    run: RunFolder
    origins: Callable[[bool], Mapping[str, str]] = lambda deployed: {}
    provenance: Callable[[Roster], Mapping[str, Any]] = lambda roster: {}
    chance: Callable[[Collection[str]], float] = lambda clients: math.nan


class CohortStrategy(WithoutHooks):
    """Rounds of exchanges with sampled cohorts of clients, evaluated and checkpointed.

    Args:
        setup: configuration, client class, roster and folder of the run.

    Attributes:
        settings, hyper, client, roster, run, origins, provenance, chance: those of :class:`Setup`.
        bytes_down, bytes_up: bytes of arrays that training has sent to clients and received from them so far.
        checkpoint_round: the round of the last checkpoint, 0 before the first.
        client_rows: a row of figures for each client, from the last evaluation.
        telemetry: counts exchanges; None outside of a run.
        protection: noise and account of client-level privacy; None without it.
        clock: the virtual clock of a simulation with a fleet; None without one.
        buffer: the clients that are busy, in buffered asynchronous rounds; None in synchronous ones.
        scheme: how clients compress their updates; None: they do not.
        receipts: the rounds whose updates the server has used, if clients keep what compression leaves out.
        secure: parameters of the run's secure sums, with secure aggregation.
        accounts: privacy costs that clients report, with example-level privacy; else empty.
        unmeasured: a warning, if clients of the last evaluation have no figures.
        attendance: the rounds in which clients were asked to train, and those in which they failed.
        identity: distinguishes the run from others of its name.
        lineage: the rounds from which the run was resumed so far.
    """

    broadcasts_model: ClassVar[bool] = True
    """Whether clients receive the global model; a method without one sets it to False."""
    sums_updates: ClassVar[bool] = True
    """Whether clients return updates of the arrays that they receive, rather than only statistics."""
    makes_models: ClassVar[bool] = True
    """Whether clients have a model after a run, to predict with."""
    divides: ClassVar[bool] = False
    """Whether clients receive no more of the network than their capacity allows, rather than all of it."""

    def __init__(self, setup: Setup) -> None:
        self.settings = setup.settings
        self.hyper = setup.hyper
        self.client = setup.client
        self.roster = setup.roster
        self.run = setup.run
        self.origins = setup.origins
        self.provenance = setup.provenance
        self.chance = setup.chance
        self.bytes_down = 0
        self.bytes_up = 0
        self.checkpoint_round = 0
        self.client_rows: list[dict[str, object]] = []
        self.telemetry: Telemetry | None = None
        self.protection: ClientPrivacy | None = None
        if self.settings.privacy.unit == "client":
            from florilegium.strategies.core.client_privacy import ClientPrivacy  # dp-accounting takes seconds

            self.protection = ClientPrivacy(self.settings, self.run)
        self.clock = Clock(self.settings) if self.settings.fleet.on else None
        self.buffer = Buffer(self) if self.settings.mode == "buffered" else None
        self.scheme = scheme_of(self.settings.compression)
        self.receipts = Receipts()
        self.secure = SecureRecord()
        self.accounts = ClientAccounts()
        self.attendance = Attendance()
        self.unmeasured: list[str] = []
        self.identity = uuid4().hex
        self.lineage: list[int] = []

    @staticmethod
    def privacy_gap(hyper: Any) -> str:
        """Return why the class does not keep client privacy, "" if it does (:mod:`florilegium.common.promises`)."""
        return "it makes no such promise"

    @staticmethod
    def secure_gap(hyper: Any) -> str:
        """Return why sums over cohorts do not suffice, "" if they do (:mod:`florilegium.common.promises`)."""
        return "it makes no such promise"

    @staticmethod
    def compression_gap(hyper: Any) -> str:
        """Return why clients cannot compress what they return, "" if they can (:mod:`florilegium.common.promises`)."""
        return "it makes no such promise"

    @staticmethod
    def transfer_gap(hyper: Any) -> str:
        """Return why the server's features cannot be transferred to another dataset, "" if they can."""
        return "it makes no such promise"

    @staticmethod
    def buffer_gap(hyper: Any) -> str:
        """Return why the server's step is no weighted mean of updates, "" if it is one."""
        return "it makes no such promise"

    # ----------------------------------------------------------------------- what a method may override

    def unfit(self, client: Member) -> str:
        """Return why a client cannot take part in this run, "" if it can.

        By default: too few training examples, or a device too small for the network.
        """
        if client.capacity < 1 and not self.divides:
            return (
                f"its device holds networks of capacity {client.capacity:g} alone; of the suite's methods heterofl and "
                "fedrolex send such"
            )
        if client.train < self.settings.min_examples:
            return f"it has {client.train} training examples, fewer than min-examples = {self.settings.min_examples}"
        return self.clock.lacks_memory(client.id, self.network_bytes(client.id)) if self.clock is not None else ""

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

    def network_bytes(self, client: str) -> int:
        """Return the size of the network that a simulated client trains. By default: the run's network, for all."""
        return self._network_bytes

    @cached_property
    def _network_bytes(self) -> int:
        s = self.settings
        return num_bytes(get_arrays(network_for(dataset_of(s), s.model, s.seed)))

    def check_roster(self) -> None:
        """Check that the settings are possible with the present clients.

        Raises:
            ConfigurationError: if they are not.
        """
        trainable = len(self.trainable())
        if self.settings.rounds and not trainable:
            raise ConfigurationError(
                f"method '{self.settings.method}' has nobody to train with: of {self._population()}. Let clients with "
                "labels take part, or set rounds to 0"
            )
        if self.settings.cohort_size > trainable:
            raise ConfigurationError(
                f"cohort-size: a cohort of {self.settings.cohort_size} was asked for, but only {trainable} clients can "
                f"train, of {self._population()}"
            )
        if self.settings.aggregation != "mean":
            rounds = range(1, self.settings.rounds + 1)
            check_cohorts(self.settings, [self._asked(self.cohort_size(r), trainable) for r in rounds])
        if self.makes_models and not self.roster.deployed and not self.evaluated():
            measured = self.settings.evaluate_on
            remedy = "Give clients more rows, or test rows of their own"
            raise ConfigurationError(
                f"method '{self.settings.method}' has nobody to evaluate: no client has a {measured} example, of "
                f"{self._population()}. {'Raise validation-fraction' if measured == 'validation' else remedy}"
            )
        if self.roster.deployed and (self.settings.unseen_fraction or self.settings.labeled_fraction < 1):
            raise ConfigurationError(
                "unseen-fraction, labeled-fraction: these keys divide the clients of a simulation and do not apply to "
                "devices. Leave both out."
            )
        if self.roster.deployed and self.settings.fleet.on:
            raise ConfigurationError(
                "fleet: this table describes the devices of a simulation; real devices are what they are. Leave it out."
            )
        if self.buffer is not None:
            self.buffer.check()

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the server's state besides the model, for checkpoints: arrays, and facts (JSON values)."""
        return {}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""

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
        if not self.broadcasts_model:
            raise ConfigurationError(
                f"init: method '{self.settings.method}' sends no model, so there is none to start from"
            )
        if gap := self.client.init_gap(self.hyper):
            raise ConfigurationError(
                f"init: with method '{self.settings.method}' and its present keys {gap} would start from this run's "
                "seed, and all else from what init names; leave it empty"
            )
        return self.server_part(replaced(self.settings, network, trained.arrays))

    @abstractmethod
    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out one round and return the new global model."""

    def report(self) -> dict[str, Any]:
        """Return the method's own block of ``summary.json``."""
        return {}

    def summary(self) -> None:
        """Log what is about to run: method, dataset and what was inferred of it, clients, nodes and rounds."""
        s = self.settings
        for line in decisions(dataset_of(s), s.cache_dir):
            log.info("dataset: %s", line)
        log.info(
            "%s on %s: %s, %d nodes, cohort of %d, %d rounds", s.method, s.dataset, self._population(),
            len(self.roster.nodes), self.cohort_size(1), s.rounds,
        )  # fmt: skip

    def _population(self) -> str:
        """Return the number of clients and of each group, in words."""
        groups = ", ".join(f"{len(self.roster.ids(group))} {group}" for group in GROUPS if self.roster.ids(group))
        return f"{len(self.roster.clients)} clients ({groups})"

    def dues(self, clients: Iterable[str]) -> dict[str, float]:
        """Return the largest weight of each client's update in an average; in training, its weight."""
        if self.settings.weighting == "uniform":
            return dict.fromkeys(clients, 1.0)
        most = self.heaviest or math.inf  # the median of all clients
        return {client: min(float(self.roster.clients[client].train), most) for client in clients}

    def weights(self, clients: Iterable[Member]) -> list[float]:
        """Return the weights of clients' updates in an average, wᵢ: 1, or the number of examples they train on."""
        if self.settings.weighting == "uniform":
            return [1.0 for _ in clients]
        most = self.heaviest or math.inf
        return [min(float(self._trained_on(client)), most) for client in clients]

    @property
    def heaviest(self) -> float | None:
        """The largest weight of any device's update; None: no limit."""
        s = self.settings
        return self.roster.heaviest(s.max_weight_ratio) if s.weighting == "examples" else None

    @property
    def reported(self) -> Reports:
        """The numbers that clients may report in this run, with their ranges."""
        s = self.settings
        return {
            **ALWAYS, **HOSTS, **reports_of(self.client),
            **(VALIDATION if s.validation_fraction else {}), **(COST if s.privacy.unit == "example" else {}),
        }  # fmt: skip

    def check_secure(self) -> None:
        """Check that a run with secure aggregation knows a bound of updates, and has enough clients in all exchanges.

        Raises:
            ConfigurationError: if it does not.
        """
        if self.sums_updates and self.protection is None and not self.settings.max_update_norm:
            raise ConfigurationError(
                "max-update-norm: with secure-aggregation a bound of updates must be known, since sums are of integers "
                "of limited size; set it to a norm that no client's update exceeds, such as 100"
            )
        rounds = range(1, self.settings.rounds + 1)
        sizes = [(f"the cohort of round {r}", self.cohort_size(r)) for r in rounds]
        sizes += [(f"the group of {group} clients, which are evaluated,", len(m)) for group, m in self.groups().items()]
        check_sizes(self.settings, sizes)

    # ------------------------------------------------------------------------------------ cohorts

    def is_final(self, server_round: int) -> bool:
        """Return whether ``server_round`` is the last one, to which ``final-participation`` applies."""
        return server_round == self.settings.rounds

    def finished(self, server_round: int) -> bool:
        """Return whether the run ends early, with ``server_round``.

        By default: after ``patience`` evaluations in a row without a new lowest median of the validation losses.
        """
        evaluations = self.run.metrics.evaluations
        if not self.settings.patience or not evaluations:
            return False
        losses = [line.get("seen", {}).get(MEDIAN) for line in evaluations]
        losses = [loss for loss in losses if loss is not None]  # an evaluation may have reached nobody who validates
        if not losses:
            raise ConfigurationError("patience: no client has an example to validate with; raise validation-fraction")
        stale = len(losses) - 1 - int(np.argmin(losses))
        if stale < self.settings.patience:
            return False
        log.info("round %d is the last: the validation loss has not fallen in %d evaluations", server_round, stale)
        return True

    def trainable(self) -> list[str]:
        """Return the ids of the clients that may train. By default: the seen clients with labels."""
        return self.roster.ids("seen")

    def enrolled(self) -> list[Member]:
        """Return the seen clients, with those whose devices are offline now."""
        return [self.roster.clients[client] for client in self.roster.ids("seen")] + self.roster.absent("seen")

    @property
    def poisson(self) -> bool:
        """Whether each client takes part independently of the others, so that the size of cohorts varies."""
        return self.protection is not None and self.settings.privacy.sampling != "fixed"

    def cohort_size(self, server_round: int) -> int:
        """Return the size of a round's cohort; with client-level privacy, the expected size."""
        share, size = self.settings.participation, self.settings.cohort_size
        if self.settings.final_participation and self.is_final(server_round):
            share, size = self.settings.final_participation, 0
        count = len(self.trainable())
        return min(size or max(1, round(share * count)), count)

    def sample(self, server_round: int) -> Cohort:
        """Draw the round's cohort uniformly without replacement; the same for every method with the same seed.

        With client-level privacy each client takes part independently at random, from a secret generator, or in the
        rounds of its slot, unless cohorts are to have a fixed size.
        """
        clients = [client for client in self.trainable() if client not in self.accounts.spent]
        size = min(self.cohort_size(server_round), len(clients))
        if self.protection is not None and self.poisson:
            drawn = self.protection.choose(clients, size / len(clients), server_round)
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
        count = self._asked(needed, len(clients))
        if self.clock is not None:
            chosen = self.clock.draw(clients, count, rng, wait=wait)
        else:
            chosen = [int(i) for i in rng.choice(len(clients), size=count, replace=False)]
        return Cohort((clients[i] for i in sorted(chosen)), min(needed, len(chosen)))

    def online(self, clients: Sequence[str]) -> list[str]:
        """Return those of ``clients`` that are online in a fleet; if none is, wait until one is, for a week at most."""
        return list(clients) if self.clock is None else self.clock.online(clients)

    def _asked(self, needed: int, of: int) -> int:
        """Return how many clients are asked for ``needed`` replies: ``oversample`` times as many, of devices."""
        timed = self.roster.deployed or self.clock is not None
        return min(math.ceil(self.settings.oversample * needed) if timed else needed, of)

    def shares(self) -> list[float]:
        """Return for each round of the run the share of the trainable clients that are asked to train."""
        count, rounds = max(1, len(self.trainable())), range(1, self.settings.rounds + 1)
        return [self._asked(self.cohort_size(r), count) / count for r in rounds]

    def can_pay(self) -> bool:
        """Return whether some client may train and has not spent its privacy budget."""
        return not self.accounts.spent >= {*self.trainable()}

    def able(self, drawn: Cohort) -> int:
        """Return how many replies to expect from a drawn cohort: clients with a spent privacy budget do not count."""
        return min(drawn.wanted, len({*drawn} - self.accounts.spent))

    # ---------------------------------------------------------------------------------- evaluation

    def evaluated(self) -> list[str]:
        """Return the clients to evaluate: all of each group, or a fixed sample of ``evaluate-clients``.

        Real devices are all evaluated, since each keeps the model of its last test.
        """
        if self.roster.deployed:
            return self.roster.ids(*GROUPS)
        chosen = []
        for group in GROUPS:
            clients = [i for i in self.roster.ids(group) if self.roster.clients[i].test]
            limit = self.settings.evaluate_clients
            if limit and limit < len(clients):
                rng = numpy_generator(self.settings.seed, "evaluate", group)
                clients = [clients[i] for i in sorted(rng.choice(len(clients), size=limit, replace=False))]
            chosen += clients
        return chosen

    def groups(self) -> dict[str, list[str]]:
        """Return the clients to evaluate by group, without groups that have none."""
        clients = self.evaluated()
        groups = {group: [c for c in clients if self.roster.clients[c].group == group] for group in GROUPS}
        return {group: members for group, members in groups.items() if members}

    def tested(self, round: Round, model: Arrays) -> dict[str, Figures]:
        """Have the clients to evaluate test their models; return summary figures for each group of clients.

        With secure aggregation a group is an exchange of its own, of which the server learns sums. In buffered rounds
        devices that are busy are tested after the last round alone.
        """
        found: dict[str, Figures] = {}
        self.unmeasured = []
        held_up = self.buffer.busy if self.buffer is not None and self.roster.deployed and not round.final else ()
        free = [client for client in self.evaluated() if client not in held_up]
        for clients in self.groups().values() if self.settings.secure_aggregation else [free] if free else []:
            outcome = self.measure(round, clients, model)
            self.unmeasured += unmeasured(clients, outcome.clients, outcome.failures)
            found |= self.figures(outcome)
        return found

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their models; return their metrics. By default: one exchange of the phase ``test``."""
        sent = model if self.broadcasts_model else None
        return round.ask("test", clients, reduce="sum", send=sent, evaluation=True)

    def figures(self, outcome: Outcome) -> dict[str, Figures]:
        """Return summary figures for each group of clients; keep those of each client, if known, in ``client_rows``."""
        groups = np.array([self.roster.clients[client].group for client in outcome.clients])
        if outcome.totals is not None:  # of one group, or of several that are measured alike
            return {min(groups, key=GROUPS.index): outcome.totals.figures()}
        measured = {
            k: v for k, v in outcome.metrics.items() if k not in ("num-examples", "weight", "bytes-down", "bytes-up")
        }
        examples = outcome.metrics["num-examples"]
        self.client_rows = [
            {"client": client} | self._named(client)
            | {"group": groups[i], "train_examples": self._trained_on(self.roster.clients[client]),
               "test_examples": int(examples[i])}
            | {name: float(values[i]) for name, values in measured.items()}
            | ({"epsilon": self.accounts.epsilons[client]} if client in self.accounts.epsilons else {})
            for i, client in enumerate(outcome.clients)
        ]  # fmt: skip
        return {
            group: summarise({k: v[groups == group] for k, v in measured.items()}, examples[groups == group])
            for group in GROUPS
            if (groups == group).any()
        }

    def _named(self, client: str) -> dict[str, object]:
        """Return the column ``name`` of a client's row, if there are natural clients."""
        return {"name": name} if (name := self.roster.clients[client].name) else {}

    def _trained_on(self, client: Member) -> int:
        """Return the number of a client's training examples without those held out for validation."""
        return client.without_validation(self.settings.validation_fraction)

    # ----------------------------------------------------------------------------------------- run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds 1 to ``num_rounds``, or continue from the checkpoint if the run is resumed.

        Evaluation, checkpoints and the timeout of an exchange are set by the configuration; ``timeout`` limits only the
        wait for the first nodes. ``evaluate_fn`` is called with the model whenever the clients evaluate it.

        Raises:
            ConfigurationError: if the run cannot start.
            RunError: if it cannot continue.
        """
        if train_config or evaluate_config:
            raise ConfigurationError(
                "train_config, evaluate_config: a phase takes its own arguments alone; leave both out"
            )
        if advice := self.client.finetuning_advice(self.settings.finetune_epochs):
            log.warning("method '%s': %s", self.settings.method, advice)
        self.roster.unfit = self.unfit
        self.roster.wait(grid, timeout)
        self.check_roster()
        if self.settings.secure_aggregation:
            self.check_secure()
        return Rounds(self, grid, num_rounds, evaluate_fn).carry_out(initial_arrays)

    def facts(self) -> dict[str, Any]:
        """Return the strategy's general state for checkpoints (JSON values), besides the method's :meth:`state`."""
        return {
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "identity": self.identity,
            "lineage": self.lineage,
            "deployed": self.roster.deployed,
            "clip_norm": None if self.protection is None else self.protection.clip_norm,
            "attendance": self.attendance.facts(),
            "releases": [] if self.protection is None else self.protection.ledger.history,
            "secure": self.secure.facts(),
            "clock": None if self.clock is None else self.clock.facts(),
            "buffer": None if self.buffer is None else self.buffer.facts(),
            "receipts": self.receipts.facts(),
            **self.accounts.facts(),
        }

    def take_back(self, checkpoint: Checkpoint) -> None:
        """Restore from a checkpoint the state that :meth:`facts` and :meth:`state` returned.

        Raises:
            RunError: if an earlier version wrote the checkpoint, without facts that this version needs.
        """
        facts = checkpoint.facts
        with earlier_version(self.run.name):
            self.identity = facts["identity"]
            self.bytes_down, self.bytes_up = facts["bytes_down"], facts["bytes_up"]
            self.lineage = [*facts["lineage"], checkpoint.round]
            self.checkpoint_round = checkpoint.round
            self.accounts.take_back(facts)
            self.attendance.take_back(facts.get("attendance", {}))
            self.secure.take_back(facts.get("secure", {}))
            if self.clock is not None:
                self.clock.take_back(facts["clock"])
            if self.buffer is not None:
                self.buffer.take_back(checkpoint.state, facts["buffer"])
            self.receipts.take_back(facts.get("receipts", {}))
            if self.protection is not None and "clip_norm" in facts:
                self.protection.clip_norm = facts["clip_norm"]
                self.protection.ledger.restore(facts.get("releases", []))
            own = {name: array for name, array in checkpoint.state.items() if not name.startswith(PREFIX)}
            self.restore(own, facts["own"])
