"""A round as a method sees it: sample a cohort, ask it to carry out a phase, get the merged outcome.

    cohort = round.sample()
    outcome = round.ask("train", cohort, send=model, reduce="delta")

:meth:`Round.ask` checks the arguments against the phase's signature, sends one message to each node, waits for the
replies, merges the usable ones, protects private sums, and records bytes, failures and telemetry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from flwr.app import Error, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from florilegium.clients.core.phases import contracts_of
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import flat
from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.carrier import Carrier
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.round_record import RoundRecord
from florilegium.strategies.exchange.clock import Load
from florilegium.strategies.exchange.exchange import Outcome, collect, readable
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.exchange.requests import Cohort, Exchange, Group, Posted, Reduce, check_options

Arguments = Callable[["Round", Sequence[str]], dict[str, Any]]
"""Returns the arguments of a phase for the clients that carry it out in a round."""


class Steps(Protocol):
    """Collects the updates of several rounds' clients for server steps."""

    def step(self, round: Round, sent: Arrays, arguments: Arguments) -> Outcome:
        """Return the merged updates for a round's server step; the other arguments: see :meth:`Round.updates`."""


class Round:
    """One round of a run.

    Args:
        federation: the run's federation, with its settings, roster, folder and counters.
        grid: the connection to the nodes.
        number: the round's number, from 1 on; 0 for exchanges before the first round.
        final: whether the run ends with this round; then devices save the model that they test.
        record: collects what the exchanges report; by default a new one.
        cohort: what :meth:`sample` returns, if it has been drawn already.
        steps: where updates come from in buffered rounds; None: from the round's cohort.
    """

    def __init__(
        self,
        federation: Federation,
        grid: Grid,
        number: int,
        *,
        final: bool = False,
        record: RoundRecord | None = None,
        cohort: Cohort | None = None,
        steps: Steps | None = None,
    ) -> None:
        self._federation = federation
        self._grid = grid
        self._cohort = cohort
        self._steps = steps
        self.number = number
        self.final = final
        self.record = record or RoundRecord()
        self._carrier = Carrier(federation, grid, number, self.record, final=final)

    def numbered(self, number: int) -> Round:
        """Return this round with another number, which determines its cohort and its random draws."""
        return Round(self._federation, self._grid, number, final=self.final, record=self.record, steps=self._steps)

    def keeping(self, cohort: Cohort) -> Round:
        """Return this round with a cohort that it has drawn, for a method that asks it in two exchanges.

        To draw again may give another cohort, since the first exchange takes time, in which clients go offline.
        """
        return Round(self._federation, self._grid, self.number, final=self.final, record=self.record, cohort=cohort)

    def sample(self) -> Cohort:
        """Draw the round's cohort, as the method samples (:meth:`florilegium.strategies.core.hooks.Hooks.sample`)."""
        return self._federation.method.sample(self) if self._cohort is None else self._cohort

    @property
    def size(self) -> int:
        """The size of the round's cohort; with client-level privacy, the expected size."""
        return self._federation.cohort_size(self.number)

    @property
    def spent(self) -> set[str]:
        """The clients that have spent their privacy budgets, and do not train any more."""
        return self._federation.accounts.spent

    def able(self, drawn: Cohort) -> int:
        """Return how many replies to expect from a drawn cohort: clients with a spent privacy budget do not count."""
        return min(drawn.wanted, len({*drawn} - self.spent))

    def kept(self, folder: str, client: str) -> ClientState:
        """Return the arrays that the server keeps of a client in a folder of the run, as they are in this round."""
        return self._federation.kept(folder, client, self.number)

    def updates(self, send: Arrays, arguments: Arguments) -> Outcome:
        """Have clients train ``send`` and return their updates: the cohort's, or in buffered rounds the next ones.

        Args:
            send: the arrays that clients are sent which begin now.
            arguments: returns the arguments of the phase ``train`` for the clients of a round.
        """
        if self._steps is not None:
            return self._steps.step(self, send, arguments)
        cohort = self.sample()
        return self.ask("train", cohort, send=send, reduce="delta", **arguments(self, cohort))

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
        arrived: bool = False,
        base: Callable[[str], Arrays] | None = None,
        **arguments: Any,
    ) -> Outcome:
        """Ask ``cohort`` to carry out ``phase``; return the merged outcome.

        Args:
            phase: the name of a phase of the method's client.
            cohort: the clients to ask.
            reduce: how clients' arrays are combined: "delta" = Σ wᵢ·(returned − sent), "sum" = Σ returned, "stack" =
                returned arrays along a new first axis.
            send: arrays for every client; "delta" refers to these.
            scatter: arrays with a leading axis in the order of ``cohort``; each client gets its own entry.
            shapes: the arrays that every client returns, by name; not for "delta", to which all that was sent returns.
                Default: none. Replies with other arrays are not used.
            evaluation: whether the exchange evaluates rather than trains; its bytes are not counted.
            out_of: number of clients of which a share of ``min-success`` must succeed, if some were skipped earlier and
                are not in ``cohort``; 0: any number may fail. Default: the replies needed from ``cohort``.
            arrived: whether the virtual time of the exchange has passed already.
            base: with "stack", returns what a client's arrays of the same names are compared with: their difference is
                its update, which ``max-update-norm`` bounds. Default: they are no updates.
            arguments: the phase's own arguments.

        Raises:
            TypeError: if ``arguments`` do not fit the phase's signature.
            RunError: if too few clients succeeded (:meth:`require`).
        """
        check_options(cohort, reduce, scatter or {}, shapes or {})
        exchange = self._exchange(phase, cohort, arguments, reduce, send, scatter, shapes, evaluation=evaluation)
        exchange = replace(exchange, base=base)
        (outcome,) = self._carrier.carry_out([exchange], arrived=arrived)
        if not cohort and outcome.divisor is not None:
            return outcome  # by chance nobody takes part, and noise alone is released
        return outcome if out_of == 0 else self.require(outcome, out_of or exchange.wanted)

    def ask_groups(
        self, phase: str, groups: Sequence[Group], *, reduce: Reduce, evaluation: bool = False
    ) -> list[Outcome]:
        """Ask groups of clients at the same time, each with arrays of its own; return an outcome for each.

        Args:
            phase: the name of a phase of the method's client.
            groups: the groups, no client in two of them; any number of their clients may fail.
            reduce, evaluation: those of :meth:`ask`.

        Raises:
            TypeError: if a group's arguments do not fit the phase's signature, or its shapes are those of changes.
        """
        for group in groups:
            check_options(group.cohort, reduce, {}, group.shapes)
        return self._carrier.carry_out([
            replace(self._exchange(
                phase, group.cohort, group.arguments, reduce, group.send, shapes=group.shapes, evaluation=evaluation
            ), base=group.base)
            for group in groups
        ])  # fmt: skip

    def load(self, phase: str, send: Arrays) -> Load:
        """Return what ``phase`` asks of a client that is sent arrays and returns its update of all of them."""
        return self._carrier.load(phase, send)

    def post(self, phase: str, clients: Sequence[str], *, send: Arrays, **arguments: Any) -> list[Posted]:
        """Ask real devices to carry out ``phase`` and return their updates of ``send``; do not wait.

        Raises:
            TypeError: if ``arguments`` do not fit the phase's signature.
        """
        posted, checked, record = [], self._checked(phase, arguments), flat(send)
        for client in clients:
            nodes = self._federation.roster.assign([client], evaluation=False)
            exchange = Exchange(phase, checked, [client], nodes, "delta", send, {}, {}, False, self.number, 0.0)
            (message,) = self._carrier.messages(exchange, record, nodes)
            (name,) = self._grid.push_messages([message])
            posted.append(
                Posted(name, client, self.number, exchange, self._carrier.expected(exchange), message, time.monotonic())
            )
        return posted

    def arrived(self, posted: Sequence[Posted]) -> list[tuple[Posted, Message]]:
        """Return those of the requests whose replies have arrived since, with the replies."""
        waiting = {one.id: one for one in posted if one.id}
        nodes = {name: one.message.metadata.dst_node_id for name, one in waiting.items()}
        pulled = self._federation.pulls.look(self._grid, nodes) if waiting else ()
        found = [(waiting[name], reply) for name, reply in pulled if name in waiting]
        offline = Error(ErrorCode.NODE_UNAVAILABLE, "its device is offline")
        lost = [(one, Message(offline, reply_to=one.message)) for one in posted if not one.id]
        return [(one, readable(one.message, reply)) for one, reply in found] + lost

    def receive(self, posted: Posted, reply: Message) -> Outcome:
        """Return the outcome of a single device's reply, checked, counted and recorded in this round."""
        exchange = replace(posted.exchange, started=time.perf_counter())
        outcome = collect(exchange.cohort, exchange.nodes, [reply], posted.expected, deployed=True)
        return self._carrier.account(exchange, outcome)

    def skip(self, phase: str, reasons: Mapping[str, str]) -> None:
        """Record clients that were asked to carry out a phase and whose replies are not used, with the reasons."""
        self.record.add(phase, 0.0, reasons, Outcome([], {}, {}, {**reasons}), evaluation=False)
        self._carrier.note_failures(phase, reasons)

    def require(self, outcome: Outcome, asked: int) -> Outcome:
        """Return ``outcome`` if enough of the ``asked`` clients have succeeded.

        Raises:
            BudgetSpentError: if all of them have spent their privacy budgets.
            RunError: if a smaller share than ``min-success`` has succeeded.
        """
        federation = self._federation
        spent = len(federation.accounts.spent & outcome.failures.keys())  # not counted as failures
        if spent and spent >= asked:
            raise BudgetSpentError("all clients that were asked have spent their budgets")
        asked -= spent
        share = federation.settings.min_success
        if not outcome.clients or len(outcome.clients) < share * asked:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(outcome.failures.items())[:5])
            wanted = f"fewer than min-success = {share:g} asks for"
            if not share * asked:
                wanted = "and a run needs at least one, whatever min-success allows"
            raise RunError(f"only {len(outcome.clients)} of {asked} clients succeeded, {wanted}. {reasons}")
        return outcome

    # --------------------------------------------------------------------------------------- details

    def _exchange(
        self, phase: str, cohort: Sequence[str], arguments: Mapping[str, Any], reduce: Reduce, send: Arrays | None,
        scatter: Mapping[str, NDArray[Any]] | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None,
        *, evaluation: bool,
    ) -> Exchange:  # fmt: skip
        """Return an exchange as it is before its clients are distributed over nodes; raise as :meth:`ask`."""
        return Exchange(
            phase, self._checked(phase, arguments), cohort, {}, reduce, send, scatter or {}, shapes or {}, evaluation,
            self.number, 0.0,
        )  # fmt: skip

    def _checked(self, phase: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in the types of the phase's signature; raise :class:`TypeError` if they do not fit."""
        client = self._federation.client
        contracts = contracts_of(client)
        if phase not in contracts:
            raise TypeError(f"{client.__name__} has no phase '{phase}'. Known: {', '.join(sorted(contracts))}.")
        return contracts[phase].read(arguments)
