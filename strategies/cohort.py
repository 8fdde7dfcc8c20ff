"""The strategy every method builds on: it samples clients, not nodes, and owns what all methods share.

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

from clients.wire import Request, pack, unpack
from common.errors import BudgetSpentError, ConfigurationError, RunError
from common.seeds import numpy_generator
from common.settings import PARAMETER_FILES, Section, Value, folder
from models.networks import build
from models.parameters import Arrays, get_arrays, is_statistic
from models.pretrained import read_pretrained
from partitions.clientdata import validating
from partitions.datasets import find_spec
from privacy.ledger import SPENT
from strategies.evaluation import Figures, summarise
from strategies.exchange import UNUSABLE, Expected, Outcome, collect, deliver
from strategies.robust import combine, least
from strategies.roster import Client, Roster
from strategies.run_folder import Checkpoint, RunFolder, find_run, read_checkpoint, read_config
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
        self._seconds: list[float] = []
        self._identity = uuid4().hex
        self._lineage: list[int] = []
        self._checkpoint_round = 0
        self._ended = False
        self.cohort: list[str] = []
        self.wanted = 0
        self._asked: dict[int, list[str]] = {}
        self._robust = False
        self._expected = Expected()
        self._round, self._phase, self._asked_at = 0, "", 0.0
        self._telemetry: Telemetry | None = None
        self._clients: list[dict[str, object]] = []
        self._figures: dict[str, Figures] = {}
        self._evaluated = 0
        self._train_config = ConfigRecord()
        self._evaluate_config = ConfigRecord()
        self._protected: tuple[int, int, Arrays] | None = None
        self._privacy: ClientPrivacy | None = None
        self._spent_clients: set[str] = set()  # whose budgets do not suffice for another training
        self._epsilons: dict[str, float] = {}  # what each client's examples have paid, as it last said
        if settings.privacy.unit == "client":
            if settings.aggregation != "mean":
                raise ConfigurationError("aggregation: with privacy.unit = 'client' noise is on sums; set it to 'mean'")
            if settings.oversample > 1:
                raise ConfigurationError("oversample: whose answer comes first is no chance to count on; set it to 1")
            from strategies.client_privacy import ClientPrivacy, refuse  # dp-accounting takes seconds to import

            refuse(settings, self.privacy_gap())
            self._privacy = ClientPrivacy(settings, run)

    # ----------------------------------------------------------------------- what a method may override

    def unfit(self, client: Client) -> str:
        """Return why a client cannot take part in this run, "" if it can. Here: too few examples."""
        if client.train < self.settings.min_examples:
            return f"it has {client.train} training examples, fewer than min-examples = {self.settings.min_examples}"
        return ""

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
        wrong = [name for name, a in trained.arrays.items() if name not in network or network[name].shape != a.shape]
        if wrong:
            shapes = [
                f"'{name}' {trained.arrays[name].shape} against {network[name].shape if name in network else 'none'}"
                for name in wrong[:3]
            ]
            raise ConfigurationError(
                f"init: run '{self.settings.init}' trained something else than the network model = "
                f"'{self.settings.model}': {', '.join(shapes)}{', …' if len(wrong) > 3 else ''}"
            )
        return self.server_part(network | trained.arrays)

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
            "%s on %s: %d clients (%s), %d nodes, cohort of %d, %d rounds",
            s.method, s.dataset, len(self.roster.clients),
            ", ".join(f"{len(self.roster.ids(group))} {group}" for group in GROUPS if self.roster.ids(group)),
            len(self.roster.nodes), len(self.sample(1)) if self._privacy is None else self.cohort_size(1), s.rounds,
        )  # fmt: skip

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
        clients = [client for client in self.trainable() if client not in self._spent_clients]
        size = min(self.cohort_size(server_round), len(clients))
        if self._privacy is not None and self.settings.privacy.sampling == "poisson":
            drawn = self._privacy.choose(clients, size / len(clients))
            return Cohort(drawn, len(drawn))
        rng = numpy_generator(self.settings.seed, "cohort", server_round)
        more = self.settings.oversample if self.roster.deployed else 1.0  # in a simulation nobody is late
        chosen = rng.choice(len(clients), size=min(math.ceil(more * size), len(clients)), replace=False)
        return Cohort((clients[i] for i in sorted(chosen)), size)

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
            scalars |= self._expected_trainings()
        self._protected = None
        if self._privacy is not None and changes:
            self._protected = self.cohort_size(server_round), len(self.trainable()), sent or {}
            scalars |= self._privacy.request(self.cohort_size(server_round))
        position = {client: index for index, client in enumerate(cohort)}
        config = {
            "phase": phase,
            "round": server_round,
            "reduce": "deltas" if robust else reduce,
            "run": self.run.name,
            "identity": self._identity,
            "lineage": self._lineage,
            "checkpoint": self._checkpoint_round,
            **scalars,
        }
        messages = []
        for node, clients in self._asked.items():
            rows = [position[client] for client in clients]
            own = None if scatter is None else {name: array[rows] for name, array in scatter.items()}
            content = Request.pack(clients, config, arrays, own)
            messages.append(Message(content, node, "evaluate" if evaluation else "train"))
        return messages

    def _expected_trainings(self) -> dict[str, float]:
        """Return in how many rounds a client trains on average, and how often it is tested: what budgets are for."""
        s, count = self.settings, max(1, len(self.trainable()))
        more = s.oversample if self.roster.deployed else 1.0
        tests = {r for r in range(1, s.rounds + 1) if r == s.rounds or (s.evaluate_every and r % s.evaluate_every == 0)}
        return {
            "trainings": sum(min(1.0, more * self.cohort_size(r) / count) for r in range(1, s.rounds + 1)),
            "tests": float(len(tests)),
        }

    def collect(self, replies: Iterable[Message]) -> Outcome:
        """Merge the replies to the last :meth:`requests`, count their bytes, and name the clients that failed."""
        replies = list(replies)
        outcome = collect(self.cohort, self._asked, replies, self._expected, deployed=self.roster.deployed)
        for client, reason in outcome.failures.items():
            log.warning("client %s failed and is left out: %s", client, reason)
            if reason.startswith(UNUSABLE):
                self.roster.ask_again(client)
        if self._telemetry is not None:
            down, up = (float(np.sum(outcome.metrics.get(f"bytes-{way}", 0.0))) for way in ("down", "up"))
            seconds = time.perf_counter() - self._asked_at
            self._telemetry.exchange(self._phase, seconds, len(self.cohort), len(outcome.failures), down, up)
        if outcome.failures and self.run.opened:
            self.run.note_failures(self._round, self._phase, outcome.failures)
        if "epsilon" in outcome.metrics:
            self._epsilons |= dict(zip(outcome.clients, outcome.metrics.pop("epsilon").tolist(), strict=True))
        if self._robust and outcome.clients:
            outcome.arrays = self._combine(outcome)
        self._spent_clients |= {c for c, reason in outcome.failures.items() if reason.startswith(SPENT)}
        if self._privacy is not None and self._protected is not None:
            outcome = self._privacy.protect(outcome, *self._protected)
        if outcome.clients and not any(reply.metadata.message_type.startswith("evaluate") for reply in replies):
            self.bytes_down += int(outcome.metrics["bytes-down"].sum())
            self.bytes_up += int(outcome.metrics["bytes-up"].sum())
        return outcome

    def _combine(self, outcome: Outcome) -> Arrays:
        """Return what robust aggregation makes of the changes, as a sum; none where too few have answered for it."""
        rule, attackers = self.settings.aggregation, self.settings.attackers
        needed, count = least(rule, attackers), len(outcome.clients)
        if self.wanted < needed:
            raise RunError(
                f"aggregation: '{rule}' with {attackers} attackers (key attackers) needs {needed} clients, but "
                f"{self.wanted} were asked"
            )
        if count < needed:
            log.warning("nothing changes: %d clients have answered, '%s' needs %d", count, rule, needed)
            return {name: np.zeros(changes.shape[1:]) for name, changes in outcome.arrays.items()}
        return {name: change * outcome.weight for name, change in combine(outcome.arrays, rule, attackers).items()}

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
        spent = len(self._spent_clients & outcome.failures.keys())  # these have only done their part
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
        return min(drawn.wanted, len({*drawn} - self._spent_clients))

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
        self._clients = [
            {"client": client, "group": groups[i], "train_examples": self._trained_on(self.roster.clients[client]),
             "test_examples": int(examples[i])} | {name: float(values[i]) for name, values in measured.items()}
            | ({"epsilon": self._epsilons[client]} if client in self._epsilons else {})
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

    def _evaluate_round(
        self, server_round: int, arrays: ArrayRecord, grid: Grid, *, final: bool
    ) -> MetricRecord | None:
        started = time.perf_counter()
        config = ConfigRecord({**self._evaluate_config, "keep": final})
        clients = self.evaluated()
        if not clients:
            log.info("round %d: there is no client to evaluate on", server_round)
            return None
        self._figures = self.figures(self.measure(clients, server_round, arrays, grid, config))
        line: dict[str, Any] = {"round": server_round, "seconds": round(sum(self._seconds), 3)}
        line |= {"evaluation_seconds": round(time.perf_counter() - started, 3)}
        line |= {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up, **self._figures}
        self.run.record(line)
        self._evaluated = server_round
        for group, figures in self._figures.items():
            log.info(
                "round %d, %s clients: %s", server_round, group,
                ", ".join(f"{name} {value:.4f}" for name, value in figures.items()),
            )  # fmt: skip
        return MetricRecord({f"{g}-{k}": v for g, figures in self._figures.items() for k, v in figures.items()})

    # ---------------------------------------------------------------------------------------- loop

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
            RunError: if the run cannot go on.
        """
        self._train_config = train_config or ConfigRecord()
        self._evaluate_config = evaluate_config or ConfigRecord()
        result = Result()
        self.roster.unfit = self.unfit
        self.roster.wait(grid, timeout)
        self._check_roster()
        network = unpack(initial_arrays)
        init = self.settings.init
        first = self.begin_from(*self._named_by_init(network)) if init else self.server_part(network)
        arrays, done = pack(first), 0
        if self.settings.resume:
            checkpoint = self.run.reopen(num_rounds)
            arrays, done = pack(checkpoint.arrays), checkpoint.round
            self.take_back(checkpoint)
            self._save(done, arrays)  # so that a second resume knows of this one
        else:
            self.run.create()
        self._telemetry = Telemetry(self.run.name, self.settings.method, self.settings.metrics_port)
        if self._privacy is not None:
            self._privacy.plan([self.cohort_size(r) for r in range(1, num_rounds + 1)], len(self.trainable()))
            if done < num_rounds and self._spent(done + 1):
                raise ConfigurationError(
                    f"privacy.epsilon: {self.settings.privacy.epsilon:g} does not suffice for round {done + 1}; a "
                    "larger budget is a new run's"
                )
            if shared := [name for name in first if is_statistic(name)]:
                raise ConfigurationError(
                    f"model: with noise, the statistics of batch norm ('{shared[0]}') are none; use a network without "
                    "it, or method = 'fedbn'"
                )
        self.summary()
        every, saved_every = self.settings.evaluate_every, self.settings.checkpoint_every
        for server_round in range(done, num_rounds + 1):
            if server_round > done:
                self.roster.refresh(grid)
                if self.roster.away:
                    self.run.note_failures(
                        server_round, "roster", dict.fromkeys(sorted(self.roster.away), "its device is offline")
                    )
                if not self.trainable():
                    self.roster.wait(grid, self.settings.round_timeout, "round-timeout", lambda: bool(self.trainable()))
                started = time.perf_counter()
                try:
                    arrays = self.train_round(server_round, arrays, grid)
                except BudgetSpentError as error:
                    log.warning("round %d changes nothing: %s", server_round, error)
                self._seconds.append(time.perf_counter() - started)
            self._ended = self._ended or (server_round > done and self.finished(server_round))
            if self._spent_clients >= {*self.trainable()} and self._spent_clients:
                log.warning("round %d is the last: all clients have spent their budgets", server_round)
                self._ended = True
            if self._privacy is not None and done < server_round < num_rounds and not self._ended:
                self._ended = self._spent(server_round + 1)
            final = server_round == num_rounds or self._ended
            if final or (server_round > done and every and server_round % every == 0):
                metrics = self._evaluate_round(server_round, arrays, grid, final=final)
                if metrics is not None:
                    result.evaluate_metrics_clientapp[server_round] = metrics
                if evaluate_fn is not None and (measured := evaluate_fn(server_round, arrays)) is not None:
                    result.evaluate_metrics_serverapp[server_round] = measured
                self._save(server_round, arrays)
            elif server_round > done and saved_every and server_round % saved_every == 0:
                self._save(server_round, arrays)
            self._report_progress("running", server_round, num_rounds)
            if final:
                break
        result.arrays = arrays
        self._finish()
        self._telemetry.end()
        return result

    def _spent(self, server_round: int) -> bool:
        """Return whether the budget does not suffice for ``server_round``, as rounds may have been repeated."""
        assert self._privacy is not None
        if not self._privacy.spent(self.cohort_size(server_round) / len(self.trainable())):
            return False
        log.warning("privacy.epsilon is spent: round %d is not carried out", server_round)
        return True

    def _named_by_init(self, network: Arrays) -> tuple[Arrays, Checkpoint]:
        """Return what ``init`` names, a run's last checkpoint or a file of parameters, and the network it belongs to.

        Of a network whose body alone was trained, as FedBABU's, the rest is what that run's seed has made of it.
        """
        s = self.settings
        if s.init.endswith(PARAMETER_FILES):
            return network, Checkpoint(0, read_pretrained(folder(s.init), network), {}, {})
        run = find_run(s.init.replace("{seed}", str(s.seed)), s.runs_dir)
        trained, seed = read_checkpoint(run), read_config(run)["seed"]
        if seed != s.seed and network.keys() - trained.arrays.keys():
            spec = find_spec(s.dataset)
            network = get_arrays(build(s.model, spec.shape, spec.classes, seed))
        return network, trained

    def _check_roster(self) -> None:
        """Refuse settings that the clients that are there cannot meet."""
        trainable = len(self.trainable())
        if self.settings.cohort_size > trainable:
            raise ConfigurationError(
                f"cohort-size: a cohort of {self.settings.cohort_size} was asked for, "
                f"but only {trainable} clients can train"
            )
        if self.roster.deployed and (self.settings.unseen_fraction or self.settings.labeled_fraction < 1):
            raise ConfigurationError(
                "unseen-fraction, labeled-fraction: these share out a simulation; devices are what they are. "
                "Leave both out."
            )

    def _report_progress(self, state: str, server_round: int, rounds: int) -> None:
        self.run.status(state, round=server_round, rounds=rounds, evaluated=self._evaluated, figures=self._figures)
        if self._telemetry is not None:
            self._telemetry.progress(server_round, rounds, len(self.roster.clients))
            self._telemetry.write(self.run.path)

    def _save(self, server_round: int, arrays: ArrayRecord) -> None:
        own, facts = self.state()
        model = unpack(arrays)
        shared = {
            "order": list(model),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "seconds": self._seconds,
            "identity": self._identity,
            "lineage": self._lineage,
            "deployed": self.roster.deployed,
            "ended": self._ended,
            "clip_norm": None if self._privacy is None else self._privacy.clip_norm,
            "epsilons": self._epsilons,
            "spent": sorted(self._spent_clients),
            "own": facts,
        }
        self.run.save(Checkpoint(server_round, model, own, shared))
        self._checkpoint_round = server_round

    def take_back(self, checkpoint: Checkpoint) -> None:
        """Take back everything that a checkpoint holds but the model.

        Raises:
            RunError: if an earlier version has written it, without something that this one needs.
        """
        facts = checkpoint.facts
        try:
            self._identity = facts["identity"]
            self.bytes_down, self.bytes_up = facts["bytes_down"], facts["bytes_up"]
            self._seconds = list(facts["seconds"])
            self._lineage = [*facts["lineage"], checkpoint.round]
            self._checkpoint_round = checkpoint.round
            self._ended = facts.get("ended", False)
            self._epsilons, self._spent_clients = dict(facts.get("epsilons", {})), set(facts.get("spent", []))
            if self._privacy is not None and "clip_norm" in facts:
                self._privacy.clip_norm = facts["clip_norm"]
            self.restore(checkpoint.state, facts["own"])
        except KeyError as error:
            raise RunError(
                f"run '{self.run.name}' is of an earlier version, whose checkpoints have no {error}; carry it out "
                "anew, or use that version"
            ) from error

    def _private_report(self) -> dict[str, Any]:
        if self._privacy is not None:
            return self._privacy.report()
        spent = list(self._epsilons.values())
        if not spent:
            return {}
        facts: dict[str, Any] = {"unit": "example", "delta": self.settings.privacy.delta}
        facts |= {"clients": len(spent), "clients_spent": len(self._spent_clients)}
        return {"privacy": {**facts, "epsilon_max": max(spent), "epsilon_mean": float(np.mean(spent))}}

    def _finish(self) -> None:
        if self._clients:
            self.run.write_clients(self._clients)
        seconds = self._seconds
        summary = {
            "method": self.settings.method,
            "dataset": self.settings.dataset,
            "seed": self.settings.seed,
            "rounds": len(seconds),
            "clients": len(self.roster.clients),
            "nodes": len(self.roster.nodes),
            **({"left_out": self.roster.left_out} if self.roster.left_out else {}),
            "seconds": round(sum(seconds), 3),
            "seconds_per_round": round(float(np.median(seconds[1:] or seconds or [0.0])), 4),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "final": self._figures,
            **self._private_report(),
            **self.report(),
        }
        self.run.write_summary(summary)
        self._report_progress("completed", len(seconds), len(seconds))
