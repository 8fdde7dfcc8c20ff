"""The strategy every method builds on: it samples clients, not nodes, asks them, and merges what they answer.

A method with one exchange a round overrides Flower's ``configure_train`` and ``aggregate_train`` where it differs; a
method with several overrides :meth:`CohortStrategy.train_round` and calls :meth:`CohortStrategy.exchange` for each.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from clients.wire import Request, unpack
from common.errors import BudgetSpentError, ConfigurationError, RunError
from common.seeds import numpy_generator
from common.settings import Section, Value
from models.parameters import Arrays
from partitions.clientdata import validating
from strategies.evaluation import Figures, summarise
from strategies.example_privacy import ClientAccounts, expected_trainings
from strategies.exchange import UNUSABLE, Expected, Outcome, collect, deliver
from strategies.initial import replaced
from strategies.robust import robust_sum
from strategies.roster import Client, Roster
from strategies.rounds import Rounds
from strategies.run_folder import Checkpoint, RunFolder, earlier_version
from strategies.settings import ServerSettings
from strategies.telemetry import Telemetry

if TYPE_CHECKING:
    from strategies.client_privacy import ClientPrivacy

log = logging.getLogger("flwr")

GROUPS = ("seen", "unseen", "unlabeled")


class Cohort(list[str]):
    """The clients drawn for a round.

    Attributes:
        wanted: how many of their answers count, the first ones; fewer than all where devices are oversampled.
    """

    def __init__(self, clients: Iterable[str], wanted: int) -> None:
        super().__init__(clients)
        self.wanted = wanted


class CohortStrategy(Strategy):
    """Rounds of exchanges with sampled cohorts of clients, evaluated and checkpointed.

    Args:
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        roster: the clients and the nodes that host them.
        run: the run's folder.

    Attributes:
        bytes_down, bytes_up: what training has cost so far, of arrays sent to clients and answered by them.
        checkpoint_round: the round of the last checkpoint, 0 before the first.
        client_rows: each client's figures, of the last evaluation.
        telemetry: counts exchanges; None outside of a run.
        protection: adds noise to sums, where clients are protected.
        accounts: what clients say of theirs, where examples are protected.
    """

    broadcasts_model: ClassVar[bool] = True
    """Whether clients receive the global model; a method without one sets it to False."""
    makes_models: ClassVar[bool] = True
    """Whether clients have a model after a run, to predict with."""

    def __init__(self, settings: ServerSettings, hyper: Section, roster: Roster, run: RunFolder) -> None:
        self.settings = settings
        self.hyper = hyper
        self.roster = roster
        self.run = run
        self.bytes_down = 0
        self.bytes_up = 0
        self.checkpoint_round = 0
        self.client_rows: list[dict[str, object]] = []
        self.telemetry: Telemetry | None = None
        self.protection: ClientPrivacy | None = None
        self.accounts = ClientAccounts()
        self._identity = uuid4().hex
        self._lineage: list[int] = []
        self.cohort: list[str] = []
        self.wanted = 0
        self._asked: dict[int, list[str]] = {}
        self._robust = False
        self._expected = Expected()
        self._round, self._phase, self._asked_at = 0, "", 0.0
        self._train_config = ConfigRecord()
        self._protected: tuple[int, int, Arrays] | None = None
        if settings.privacy.unit == "client":
            from strategies.client_privacy import ClientPrivacy, refuse  # dp-accounting takes seconds to import

            refuse(settings, self.privacy_gap())
            self.protection = ClientPrivacy(settings, run)

    # ----------------------------------------------------------------------- what a method may override

    def unfit(self, client: Client) -> str:
        """Return why a client cannot take part in this run, "" if it can. Here: too few examples."""
        if client.train < self.settings.min_examples:
            return f"it has {client.train} training examples, fewer than min-examples = {self.settings.min_examples}"
        return ""

    def check_roster(self) -> None:
        """Refuse settings that the clients that are there cannot meet."""
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
        if self.roster.deployed and (self.settings.unseen_fraction or self.settings.labeled_fraction < 1):
            raise ConfigurationError(
                "unseen-fraction, labeled-fraction: these share out a simulation; devices are what they are. "
                "Leave both out."
            )

    @classmethod
    def transfer_gap(cls, hyper: Any) -> str:
        """Return what is missing, with these hyper-parameters, for features to be transferred to other data.

        "" if the server's arrays hold all blocks of the network but the last.
        """
        return ""

    def privacy_gap(self) -> str:
        """Return what breaks client-level privacy in this method; "" if all that the server sends is protected.

        It is where the server learns from nothing but sums of the changes (``reduce = "delta"``) of arrays it sent.
        """
        return "clients answer more than changes of what they were sent, which nothing bounds"

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the server's state besides the model: arrays, and numbers (JSON values). Saved with a checkpoint."""
        return {}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned."""

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return what the server holds of the network's arrays: here all of them."""
        return arrays

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Return what the run starts from where ``init`` names an earlier run.

        Args:
            network: the arrays of the network as it was built.
            trained: the earlier run's last checkpoint. Its model may be a part of the network, the shared blocks.

        Raises:
            ConfigurationError: if the earlier run has nothing to start this one from.
        """
        if not self.broadcasts_model:
            raise ConfigurationError(
                f"init: method '{self.settings.method}' sends no model, so there is none to start from"
            )
        return self.server_part(replaced(self.settings, network, trained.arrays))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round, in a method with one exchange a round."""
        raise NotImplementedError("a method has either this or a train_round of its own")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next global model and the round's figures, in a method with one exchange a round."""
        raise NotImplementedError("a method has either this or a train_round of its own")

    def train_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Carry out one round and return the new global model. Here: one exchange, as Flower's hooks define it."""
        messages = list(self.configure_train(server_round, arrays, self._train_config, grid))
        new, metrics = self.aggregate_train(server_round, self._deliver(grid, messages))
        if metrics is not None:
            log.info("round %d: %s", server_round, ", ".join(f"{k} {v:.4g}" for k, v in metrics.items()))
        return arrays if new is None else new

    def report(self) -> dict[str, Any]:
        """Return the method's own block of ``summary.json``."""
        return {}

    def summary(self) -> None:
        """Log what is about to run."""
        s = self.settings
        log.info(
            "%s on %s: %s, %d nodes, cohort of %d, %d rounds", s.method, s.dataset, self._population(),
            len(self.roster.nodes), len(self.sample(1)) if self.protection is None else self.cohort_size(1), s.rounds,
        )  # fmt: skip

    def _population(self) -> str:
        """Say how many clients there are, and of which groups."""
        groups = ", ".join(f"{len(self.roster.ids(group))} {group}" for group in GROUPS if self.roster.ids(group))
        return f"{len(self.roster.clients)} clients ({groups})"

    # ------------------------------------------------------------------------------------ cohorts

    def is_final(self, server_round: int) -> bool:
        """Return whether ``server_round`` is the last one, to which ``final-participation`` applies."""
        return server_round == self.settings.rounds

    def finished(self, server_round: int) -> bool:
        """Return whether the run may end with ``server_round``, before its last.

        Here: after ``patience`` evaluations in a row without a new lowest validation loss.
        """
        if not self.settings.patience or not self.run.records:
            return False
        losses = [line.get("seen", {}).get("validation_loss") for line in self.run.records]
        if None in losses:
            raise ConfigurationError("patience: no client has an example to validate with; raise validation-fraction")
        stale = len(losses) - 1 - int(np.argmin(losses))
        if stale < self.settings.patience:
            return False
        log.info("round %d is the last: the validation loss has not fallen in %d evaluations", server_round, stale)
        return True

    def trainable(self) -> list[str]:
        """Return the clients that training may ask: seen and labeled ones."""
        return self.roster.ids("seen")

    def cohort_size(self, server_round: int) -> int:
        """Return the size of a round's cohort, an expectation where each client takes part by chance."""
        share, size = self.settings.participation, self.settings.cohort_size
        if self.settings.final_participation and self.is_final(server_round):
            share, size = self.settings.final_participation, 0
        count = len(self.trainable())
        return min(size or max(1, round(share * count)), count)

    def sample(self, server_round: int) -> Cohort:
        """Draw the round's cohort uniformly without replacement; the same for every method with the same seed.

        With client-level privacy and Poisson sampling each client takes part by chance, which nobody can repeat. Of
        devices ``oversample`` times as many are drawn as are to answer.
        """
        clients = [client for client in self.trainable() if client not in self.accounts.spent]
        size = min(self.cohort_size(server_round), len(clients))
        if self.protection is not None and self.settings.privacy.sampling == "poisson":
            drawn = self.protection.choose(clients, size / len(clients))
            return Cohort(drawn, len(drawn))
        rng = numpy_generator(self.settings.seed, "cohort", server_round)
        chosen = rng.choice(len(clients), size=min(math.ceil(self._oversample() * size), len(clients)), replace=False)
        return Cohort((clients[i] for i in sorted(chosen)), size)

    def _oversample(self) -> float:
        """Return how many times as many clients are asked as are to answer; in a simulation nobody is late."""
        return self.settings.oversample if self.roster.deployed else 1.0

    def _shares(self) -> list[float]:
        """Return the share of the trainable clients that each round of the run asks."""
        count, rounds = max(1, len(self.trainable())), range(1, self.settings.rounds + 1)
        return [min(1.0, self._oversample() * self.cohort_size(r) / count) for r in rounds]

    # ---------------------------------------------------------------------------------- exchanges

    def requests(
        self,
        cohort: Sequence[str],
        server_round: int,
        phase: str,
        *,
        reduce: str,
        arrays: ArrayRecord | None = None,
        scatter: Mapping[str, NDArray[Any]] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        evaluation: bool = False,
        **scalars: Value,
    ) -> list[Message]:
        """Return one message for each node that hosts clients of ``cohort``.

        Args:
            cohort: the clients to ask.
            server_round: the present round.
            phase: what they are asked to do: the name of a phase of the method's client.
            reduce: how a node combines its clients' arrays: "delta", "sum" or "stack".
            arrays: sent to every client.
            scatter: arrays with a leading axis in the order of ``cohort``; each client gets its own entry.
            shapes: those of the arrays that a client answers, where they are known and no changes of ``arrays``.
            evaluation: whether this measures rather than trains; its bytes are not counted.
            scalars: the phase's own numbers and words.
        """
        self.cohort, self._round, self._phase = list(cohort), server_round, phase
        self.wanted = cohort.wanted if isinstance(cohort, Cohort) else len(cohort)
        self._asked_at = time.perf_counter()
        self._asked = self.roster.assign(cohort, evaluation=evaluation)
        changes = reduce == "delta" and not evaluation
        robust = changes and self.settings.aggregation != "mean"
        self._robust = robust
        sent = None if arrays is None or reduce != "delta" else unpack(arrays)
        self._expected = Expected(
            reduce == "stack" or robust, sent, self._heaviest(cohort), self.settings.max_update_norm, shapes or {}
        )
        if self.settings.privacy.unit == "example":
            scalars |= expected_trainings(self.settings, self._shares())
        self._protected = None
        if self.protection is not None and changes:
            self._protected = self.cohort_size(server_round), len(self.trainable()), sent or {}
            scalars |= self.protection.request(self.cohort_size(server_round))
        position = {client: index for index, client in enumerate(cohort)}
        config = {
            "phase": phase,
            "round": server_round,
            "reduce": "deltas" if robust else reduce,
            "run": self.run.name,
            "identity": self._identity,
            "lineage": self._lineage,
            "checkpoint": self.checkpoint_round,
            **scalars,
        }
        messages = []
        for node, clients in self._asked.items():
            rows = [position[client] for client in clients]
            own = None if scatter is None else {name: array[rows] for name, array in scatter.items()}
            content = Request.pack(clients, config, arrays, own)
            messages.append(Message(content, node, "evaluate" if evaluation else "train"))
        return messages

    def collect(self, replies: Iterable[Message]) -> Outcome:
        """Merge the replies to the last :meth:`requests`, count their bytes, and name the clients that failed."""
        replies = list(replies)
        outcome = collect(self.cohort, self._asked, replies, self._expected, deployed=self.roster.deployed)
        for client, reason in outcome.failures.items():
            log.warning("client %s failed and is left out: %s", client, reason)
            if reason.startswith(UNUSABLE):
                self.roster.ask_again(client)
        if self.telemetry is not None:
            down, up = (float(np.sum(outcome.metrics.get(f"bytes-{way}", 0.0))) for way in ("down", "up"))
            seconds = time.perf_counter() - self._asked_at
            self.telemetry.exchange(self._phase, seconds, len(self.cohort), len(outcome.failures), down, up)
        if outcome.failures and self.run.opened:
            self.run.note_failures(self._round, self._phase, outcome.failures)
        self.accounts.hear(outcome)
        if self._robust and outcome.clients:
            s = self.settings
            outcome.arrays = robust_sum(outcome, s.aggregation, s.attackers, self.wanted)
        if self.protection is not None and self._protected is not None:
            outcome = self.protection.protect(outcome, *self._protected)
        if outcome.clients and not any(reply.metadata.message_type.startswith("evaluate") for reply in replies):
            self.bytes_down += int(outcome.metrics["bytes-down"].sum())
            self.bytes_up += int(outcome.metrics["bytes-up"].sum())
        return outcome

    def _heaviest(self, cohort: Sequence[str]) -> dict[str, float]:
        """Return the weight that the change of each client of ``cohort`` may have: 1, or the examples it trains on."""
        uniform, clients = self.settings.weighting == "uniform", self.roster.clients
        return {client: 1.0 if uniform else float(clients[client].train) for client in cohort}

    def require(self, outcome: Outcome, asked: int) -> Outcome:
        """Return ``outcome`` where enough of the ``asked`` clients have succeeded.

        Raises:
            RunError: if fewer have than ``min-success`` asks for, or none.
        """
        if asked == 0 and self._protected is not None:
            return outcome  # by chance nobody takes part, and noise alone is released
        spent = len(self.accounts.spent & outcome.failures.keys())  # these have only done their part
        if spent and spent >= asked:
            raise BudgetSpentError("all clients that were asked have spent their budgets")
        asked -= spent
        if not outcome.clients or len(outcome.clients) < self.settings.min_success * asked:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(outcome.failures.items())[:5])
            raise RunError(
                f"only {len(outcome.clients)} of {asked} clients succeeded, fewer than min-success = "
                f"{self.settings.min_success:g} asks for. {reasons}"
            )
        return outcome

    def able(self, drawn: Cohort) -> int:
        """Return how many of the clients drawn for a round may be expected: none that have spent their budgets."""
        return min(drawn.wanted, len({*drawn} - self.accounts.spent))

    def exchange(
        self,
        grid: Grid,
        cohort: Sequence[str],
        server_round: int,
        phase: str,
        *,
        of: int | None = None,
        **request: Any,
    ) -> Outcome:
        """Ask ``cohort`` to carry out ``phase`` and return what it answered.

        Args:
            grid, cohort, server_round, phase, request: as of :meth:`requests`.
            of: how many clients were asked where these are those that are left of them; 0: any number may fail.

        Raises:
            RunError: if too few have succeeded (:meth:`require`).
        """
        messages = self.requests(cohort, server_round, phase, **request)
        outcome = self.collect(self._deliver(grid, messages))
        return outcome if of == 0 else self.require(outcome, of or self.wanted)

    def _deliver(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """Send the last :meth:`requests` and return the replies: all, or as many as are wanted."""
        enough = self.wanted if self.wanted < len(self.cohort) else 0
        deployed = self.roster.deployed
        timeout = self.settings.round_timeout
        return deliver(grid, messages, timeout, self._expected, deployed=deployed, enough=enough)

    # ---------------------------------------------------------------------------------- evaluation

    def evaluated(self) -> list[str]:
        """Return the clients to evaluate: of each group all, or a fixed sample of ``evaluate-clients``.

        On real devices that is everybody: a device keeps the model of its last test.
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

    def measure(
        self, clients: Sequence[str], server_round: int, arrays: ArrayRecord, grid: Grid, config: ConfigRecord
    ) -> Outcome:
        """Have ``clients`` test their models and return what they measured. Here: one exchange."""
        request: dict[str, Any] = {**config, "arrays": arrays if self.broadcasts_model else None}
        return self.exchange(grid, clients, server_round, "test", reduce="sum", evaluation=True, **request)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flower's hook for one exchange; here :meth:`measure` is in its place, which may make several."""
        raise NotImplementedError("clients are evaluated by measure()")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See :meth:`configure_evaluate`."""
        raise NotImplementedError("clients are evaluated by measure()")

    def figures(self, outcome: Outcome) -> dict[str, Figures]:
        """Return the figures of each group of clients, and remember each client's. Here: what the clients measured."""
        groups = np.array([self.roster.clients[client].group for client in outcome.clients])
        measured = {
            k: v for k, v in outcome.metrics.items() if k not in ("num-examples", "weight", "bytes-down", "bytes-up")
        }
        examples = outcome.metrics["num-examples"]
        self.client_rows = [
            {"client": client, "group": groups[i], "train_examples": self._trained_on(self.roster.clients[client]),
             "test_examples": int(examples[i])} | {name: float(values[i]) for name, values in measured.items()}
            | ({"epsilon": self.accounts.epsilons[client]} if client in self.accounts.epsilons else {})
            for i, client in enumerate(outcome.clients)
        ]  # fmt: skip
        return {
            group: summarise({k: v[groups == group] for k, v in measured.items()}, examples[groups == group])
            for group in GROUPS
            if (groups == group).any()
        }

    def _trained_on(self, client: Client) -> int:
        """Return how many of a client's training examples are not held back to validate."""
        return client.train - (validating(client.train, self.settings.validation_fraction) if client.labeled else 0)

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
        """Run rounds 1 to ``num_rounds``, or go on from the checkpoint where the run is resumed.

        Evaluation, checkpoints and the timeout of an exchange come from the settings; ``timeout`` bounds the wait for
        the first nodes. ``train_config`` and ``evaluate_config`` reach the clients with every request, and
        ``evaluate_fn`` is called with the model whenever the clients evaluate it.

        Raises:
            ConfigurationError: if the run cannot begin.
            RunError: if it cannot go on.
        """
        self._train_config = train_config or ConfigRecord()
        self.roster.unfit = self.unfit
        self.roster.wait(grid, timeout)
        self.check_roster()
        return Rounds(self, grid, num_rounds, evaluate_config or ConfigRecord(), evaluate_fn).carry_out(initial_arrays)

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the model and the method's own :meth:`state`; JSON values."""
        return {
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "identity": self._identity,
            "lineage": self._lineage,
            "deployed": self.roster.deployed,
            "clip_norm": None if self.protection is None else self.protection.clip_norm,
            **self.accounts.facts(),
        }

    def take_back(self, checkpoint: Checkpoint) -> None:
        """Take back what :meth:`facts` and :meth:`state` returned when a checkpoint was written.

        Raises:
            RunError: if an earlier version has written it, without something that this one needs.
        """
        facts = checkpoint.facts
        with earlier_version(self.run.name):
            self._identity = facts["identity"]
            self.bytes_down, self.bytes_up = facts["bytes_down"], facts["bytes_up"]
            self._lineage = [*facts["lineage"], checkpoint.round]
            self.checkpoint_round = checkpoint.round
            self.accounts.take_back(facts)
            if self.protection is not None and "clip_norm" in facts:
                self.protection.clip_norm = facts["clip_norm"]
            self.restore(checkpoint.state, facts["own"])
