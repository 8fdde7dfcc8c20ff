"""A round as a method sees it: draw a cohort, ask it something, get the merged outcome.

    cohort = round.sample()
    outcome = round.ask("train", cohort, send=model, reduce="delta")

:meth:`Round.ask` checks the arguments against the phase's signature, sends one message to each node, waits for the
replies, merges what is usable, protects private sums, and keeps the run's books (bytes, failures, telemetry).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from florilegium.clients.core.phases import contracts_of
from florilegium.clients.core.wire import Request, Work, pack
from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.example_privacy import expected_trainings
from florilegium.strategies.core.exchange import UNUSABLE, Expected, Outcome, collect, deliver
from florilegium.strategies.core.robust import robust_sum

if TYPE_CHECKING:
    from florilegium.strategies.core.cohort import CohortStrategy

log = logging.getLogger("flwr")

Reduce = Literal["delta", "sum", "stack"]


class Cohort(list[str]):
    """The clients drawn for a round.

    Attributes:
        wanted: how many replies are needed, the first usable ones; fewer than all where devices are oversampled.
    """

    def __init__(self, clients: Iterable[str], wanted: int) -> None:
        super().__init__(clients)
        self.wanted = wanted


@dataclass(frozen=True)
class Exchange:
    """One exchange as it was sent: what is needed to make sense of the replies.

    Attributes:
        phase: what was asked.
        cohort: the clients that were asked, in the order of the outcome.
        wanted: how many replies are needed.
        nodes: the clients of each node that got a message.
        messages: one for each of ``nodes``, in this order.
        expected: what makes a reply usable.
        evaluation: whether this measures rather than trains.
        changes: the arrays that were sent, where changes of them come back; else None.
        robust: whether single updates come back, to be combined by a robust rule.
        started: when it was sent, by ``time.perf_counter``.
    """

    phase: str
    cohort: Sequence[str]
    wanted: int
    nodes: Mapping[int, Sequence[str]]
    messages: Sequence[Message]
    expected: Expected
    evaluation: bool
    changes: Arrays | None
    robust: bool
    started: float


class Round:
    """One round of a run.

    Args:
        strategy: the run's strategy: its settings, roster, folder and books.
        grid: the connection to the nodes.
        number: the round's number, from 1 on; 0 is what comes before the first.
        final: whether the run ends with this round; then devices keep the model of its test.
    """

    def __init__(self, strategy: CohortStrategy, grid: Grid, number: int, *, final: bool = False) -> None:
        self._strategy = strategy
        self._grid = grid
        self.number = number
        self.final = final

    def numbered(self, number: int) -> Round:
        """Return this round under another number, which names its cohort and its random draws."""
        return Round(self._strategy, self._grid, number, final=self.final)

    def sample(self) -> Cohort:
        """Draw the round's cohort (:meth:`florilegium.strategies.core.cohort.CohortStrategy.sample`)."""
        return self._strategy.sample(self.number)

    def ask(
        self,
        phase: str,
        cohort: Sequence[str],
        *,
        reduce: Reduce,
        send: Arrays | None = None,
        scatter: Mapping[str, NDArray[Any]] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        evaluation: bool = False,
        out_of: int | None = None,
        **arguments: Any,
    ) -> Outcome:
        """Ask ``cohort`` to carry out ``phase`` and return what came of it.

        Args:
            phase: the name of a phase of the method's client.
            cohort: the clients to ask.
            reduce: how clients' arrays are combined: "delta" = Σ wᵢ·(returned − sent), "sum" = Σ returned, "stack" =
                returned arrays along a new first axis.
            send: arrays for every client; those of "delta".
            scatter: arrays with a leading axis in the order of ``cohort``; each client gets its own entry.
            shapes: shapes of the arrays that a client returns, where they are known and no changes of ``send``.
            evaluation: whether this measures rather than trains; its bytes are not counted.
            out_of: of how many clients ``min-success`` must have succeeded, where ``cohort`` are those left of more; 0:
                any number may fail. Default: those that are wanted of ``cohort``.
            arguments: the phase's own arguments.

        Raises:
            TypeError: if the ``arguments`` are not those of the phase.
            RunError: if too few clients succeeded (:meth:`require`).
        """
        exchange = self._request(phase, cohort, reduce, send, scatter or {}, shapes or {}, evaluation, arguments)
        enough = exchange.wanted if exchange.wanted < len(cohort) else 0
        strategy = self._strategy
        replies = deliver(
            self._grid, exchange.messages, strategy.settings.round_timeout, exchange.expected,
            deployed=strategy.roster.deployed, enough=enough,
        )  # fmt: skip
        outcome = self._collect(exchange, replies)
        return outcome if out_of == 0 else self.require(outcome, out_of or exchange.wanted)

    def require(self, outcome: Outcome, asked: int) -> Outcome:
        """Return ``outcome`` where enough of the ``asked`` clients have succeeded.

        Raises:
            BudgetSpentError: if none has, since all have spent their privacy budgets.
            RunError: if fewer have than ``min-success`` asks for.
        """
        strategy = self._strategy
        if asked == 0 and strategy.protection is not None:
            return outcome  # by chance nobody takes part, and noise alone is released
        spent = len(strategy.accounts.spent & outcome.failures.keys())  # these have only done their part
        if spent and spent >= asked:
            raise BudgetSpentError("all clients that were asked have spent their budgets")
        asked -= spent
        share = strategy.settings.min_success
        if not outcome.clients or len(outcome.clients) < share * asked:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(outcome.failures.items())[:5])
            raise RunError(
                f"only {len(outcome.clients)} of {asked} clients succeeded, fewer than min-success = {share:g} asks "
                f"for. {reasons}"
            )
        return outcome

    # --------------------------------------------------------------------------------------- details

    def _request(
        self,
        phase: str,
        cohort: Sequence[str],
        reduce: Reduce,
        send: Arrays | None,
        scatter: Mapping[str, NDArray[Any]],
        shapes: Mapping[str, tuple[int, ...]],
        evaluation: bool,
        arguments: Mapping[str, Any],
    ) -> Exchange:
        """Make a message for each node that hosts clients of ``cohort``; the arguments are those of :meth:`ask`."""
        strategy = self._strategy
        contracts = contracts_of(strategy.client)
        if phase not in contracts:
            raise TypeError(
                f"{strategy.client.__name__} has no phase '{phase}'. Known: {', '.join(sorted(contracts))}."
            )
        read = contracts[phase].read(arguments)
        changes = (send or {}) if reduce == "delta" and not evaluation else None
        robust = changes is not None and strategy.settings.aggregation != "mean"
        expected = Expected(
            reduce == "stack" or robust, send if reduce == "delta" else None, self._heaviest(cohort),
            strategy.settings.max_update_norm, shapes,
        )  # fmt: skip
        protection = {}
        if strategy.protection is not None and changes is not None:
            protection = strategy.protection.request(strategy.cohort_size(self.number))
        nodes = strategy.roster.assign(cohort, evaluation=evaluation)
        record, messages = None if send is None else pack(send), []
        position = {client: index for index, client in enumerate(cohort)}
        for node, clients in nodes.items():
            rows = [position[client] for client in clients]
            own = {name: array[rows] for name, array in scatter.items()}
            kind = "deltas" if robust else reduce
            content = Request(clients, phase, kind, self._work(), read, protection, scatter=own).pack(record)
            messages.append(Message(content, node, "evaluate" if evaluation else "train"))
        wanted = cohort.wanted if isinstance(cohort, Cohort) else len(cohort)
        return Exchange(
            phase, cohort, wanted, nodes, messages, expected, evaluation, changes, robust, time.perf_counter()
        )

    def _work(self) -> Work:
        """Return what every request of this round says of the round and the run."""
        strategy = self._strategy
        expected: dict[str, float] = {}
        if strategy.settings.privacy.unit == "example":
            expected = expected_trainings(strategy.settings, strategy.shares())
        return Work(
            self.number, strategy.run.name, strategy.identity, strategy.lineage, strategy.checkpoint_round, self.final,
            **expected,
        )  # fmt: skip

    def _heaviest(self, cohort: Sequence[str]) -> dict[str, float]:
        """Return the weight that the update of each client of ``cohort`` may have: 1, or the examples it trains on."""
        uniform = self._strategy.settings.weighting == "uniform"
        members = self._strategy.roster.clients
        return {client: 1.0 if uniform else float(members[client].train) for client in cohort}

    def _collect(self, exchange: Exchange, replies: Sequence[Message]) -> Outcome:
        """Merge the replies, protect the sums, count bytes, and name the clients that failed."""
        strategy = self._strategy
        outcome = collect(
            exchange.cohort, exchange.nodes, replies, exchange.expected, deployed=strategy.roster.deployed
        )
        for client, reason in outcome.failures.items():
            log.warning("client %s failed and is skipped: %s", client, reason)
            if reason.startswith(UNUSABLE):
                strategy.roster.ask_again(client)
        down, up = (int(np.sum(outcome.metrics.get(f"bytes-{way}", 0.0))) for way in ("down", "up"))
        if strategy.telemetry is not None:
            seconds = time.perf_counter() - exchange.started
            failed = len(outcome.failures)
            strategy.telemetry.exchange(exchange.phase, seconds, len(exchange.cohort), failed, down, up)
        if outcome.failures and strategy.run.opened:
            strategy.run.note_failures(self.number, exchange.phase, outcome.failures)
        strategy.accounts.hear(outcome)
        if exchange.robust and outcome.clients:
            s = strategy.settings
            outcome.arrays = robust_sum(outcome, s.aggregation, s.attackers, exchange.wanted)
        if strategy.protection is not None and exchange.changes is not None:
            members, expected = len(strategy.trainable()), strategy.cohort_size(self.number)
            outcome = strategy.protection.protect(outcome, expected, members, exchange.changes)
        if outcome.clients and not exchange.evaluation:
            strategy.bytes_down += down
            strategy.bytes_up += up
        return outcome
