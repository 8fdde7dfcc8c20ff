"""A run, round by round: training, evaluation and checkpoints, from the first round or a checkpoint to the last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from florilegium.clients.core.wire import pack, unpack
from florilegium.common.errors import BudgetSpentError, ConfigurationError, Interrupted
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.buffer import Buffer
from florilegium.strategies.core.closing import summary_of, untested, warnings
from florilegium.strategies.core.health import unmeasured
from florilegium.strategies.core.hooks import Hooks, resume
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.telemetry import Telemetry
from florilegium.strategies.exchange.evaluation import Evaluation, best_round
from florilegium.strategies.folder.main_figure import recorded
from florilegium.strategies.folder.metrics_file import SIMULATED, TRAINING
from florilegium.strategies.folder.run_folder import Checkpoint, earlier_version

log = logging.getLogger("flwr")

_SHARE = 0.1
"""Largest share of a run's time that is spent on checkpoints of which only the time has come."""
_GUESS = 0.1
"""Seconds that the first checkpoint is taken to need."""


class Rounds:
    """Carries out the rounds of one run.

    Args:
        strategy: the method; its federation's roster must be ready.
        grid: the connection to the nodes.
        last: number of the last round.
        evaluate_fn: called with the model whenever the clients evaluate it.
    """

    _telemetry: Telemetry

    def __init__(
        self,
        strategy: Hooks,
        grid: Grid,
        last: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self._strategy = strategy
        self._federation = strategy.federation
        self._buffer = Buffer(strategy.federation) if strategy.settings.mode == "buffered" else None
        self._grid = grid
        self._last = last
        self._evaluate_fn = evaluate_fn
        self._result = Result()
        self._seconds: list[float] = []
        self._found = Evaluation({})  # in the last evaluation
        self._evaluated = 0  # its round
        self._unmeasured: list[str] = []  # its clients without figures, in words
        self._loss: float | None = None  # of the last round's training
        self._ended = False  # whether the run ends before its last round
        self._started = time.monotonic()
        self._saved: float | None = None  # when the last checkpoint was written
        self._saving = _GUESS  # seconds that it took
        self._kept: int | None = None  # the round whose models are kept, once the run is over

    def carry_out(self, initial: ArrayRecord) -> Result:
        """Carry out all remaining rounds; return the final model and the metrics.

        Args:
            initial: the network, initialised from the run's seed.

        Raises:
            ConfigurationError: if the run cannot start.
            RunError: if it cannot continue.
        """
        strategy, federation = self._strategy, self._federation
        s, run = strategy.settings, federation.run
        model, done = self._begin(unpack(initial))
        for server_round in range(done, self._last + 1):
            new = server_round > done
            line: dict[str, Any] = {}
            if new:
                model, line[TRAINING] = self._train(server_round, model)
            self._ended = self._ended or (new and self._strategy.finished(server_round))
            self._ended = self._ended or self._spent_after(server_round, new=new)
            final = bool(server_round == self._last or self._ended)
            due = final or bool(new and s.evaluate_every and server_round % s.evaluate_every == 0)
            if due:
                line |= self._evaluate(server_round, model, final=final)
            self._record(server_round, line)
            if due and s.keep == "best" and self._kept is None:
                federation.best_round = best_round(federation.run.metrics.evaluations, federation.task)
            final = final or run.ended
            stopped = run.watcher.interrupted  # read once: what stops a run after its checkpoint waits for the next one
            if due or (new and (stopped or self._checkpoint_due(server_round))):
                self._save(server_round, model)
            self._report_progress("running", server_round, self._last)
            if final:
                model = self._best(server_round, model)
                break
            if stopped:
                raise Interrupted(f"stopped after round {server_round}")
        self._finish()
        self._result.arrays = pack(model)
        return self._result

    # ----------------------------------------------------------------------------------------- start

    def _begin(self, network: Arrays) -> tuple[Arrays, int]:
        """Return the model to start or continue from, and the number of finished rounds."""
        strategy, federation = self._strategy, self._federation
        s, run = strategy.settings, federation.run
        with earlier_version(s.init):
            first = strategy.begin_from(*federation.start.named()) if s.init else strategy.server_part(network)
        model, done = first, 0
        origins = federation.origins(federation.roster.deployed)
        if s.resume and (checkpoint := run.reopen(self._last, origins)) is not None:
            checkpoint = federation.start.own(checkpoint, run.name)
            run.hold(federation.start.kept)
            model, done = checkpoint.arrays, checkpoint.round
            resume(strategy, checkpoint)
            self._kept = checkpoint.facts.get("kept")
            if self._kept is not None and self._last > done:
                raise ConfigurationError(
                    f"resume: run '{run.name}' is over, and its last checkpoint has the models of round {self._kept}, "
                    f"which keep = 'best' has chosen; begin a new run with init = '{run.name}'"
                )
            federation.best_round = (
                best_round(federation.run.metrics.evaluations, federation.task) if s.keep == "best" else None
            )
            with earlier_version(run.name):
                if self._buffer is not None:
                    self._buffer.take_back(checkpoint.state, checkpoint.facts["buffer"])
                self._seconds, self._ended = list(checkpoint.facts["seconds"]), checkpoint.facts.get("ended", False)
            self._save(done, model)  # records this resume in the lineage, for a later resume
        elif not s.resume:
            run.create(origins)
        run.hold(federation.start.kept)
        run.attempts.begin(federation.provenance(federation.roster))
        federation.telemetry = self._telemetry = Telemetry(run.name, s.method, s.metrics_port)
        for layer in federation.layers:
            layer.begin(first, self._last, done)
        strategy.summary()
        return model, done

    # ---------------------------------------------------------------------------------------- during

    def _train(self, server_round: int, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        """Carry out a training round with the clients that are online; wait if there are none.

        Returns:
            The new model, and what the round did (:class:`RoundRecord`).
        """
        strategy, federation, grid = self._strategy, self._federation, self._grid
        s, roster = strategy.settings, federation.roster
        roster.refresh(grid)
        if roster.away:
            away = dict.fromkeys(sorted(roster.away), "its device is offline")
            federation.run.note_failures(server_round, "roster", away)
        if not strategy.trainable() or (roster.away and not federation.can_pay()):
            roster.wait(grid, s.round_timeout, "round-timeout", federation.can_pay)
        this, before = Round(federation, grid, server_round, steps=self._buffer), model
        down, up, started = federation.bytes_down, federation.bytes_up, time.perf_counter()
        try:
            model = strategy.train_round(this, model)
            for layer in federation.layers:
                model = layer.after(this, model)
        except BudgetSpentError as error:
            log.warning("round %d leaves the model as it is: %s", server_round, error)
        federation.attendance.add(this.record.asked, this.record.failures)
        self._seconds.append(time.perf_counter() - started)
        entry = this.record.entry(self._seconds[-1], s.learning_rate * s.decay(server_round), before, model)
        self._loss = entry.get("loss")
        return model, entry | {"bytes_down": federation.bytes_down - down, "bytes_up": federation.bytes_up - up}

    def _spent_after(self, server_round: int, *, new: bool) -> bool:
        """Return whether the privacy budgets do not suffice for another round after ``server_round``."""
        federation = self._federation
        if federation.accounts.spent:
            members = {*self._strategy.trainable(), *(client.id for client in federation.roster.absent("seen"))}
            if federation.accounts.spent >= members:
                log.warning("round %d is the last: all clients have spent their budgets", server_round)
                return True
        why = ""
        if new and server_round < self._last:
            why = next((found for layer in federation.layers if (found := layer.spent(server_round + 1))), "")
        if why:
            log.warning("%s: round %d is not carried out", why, server_round + 1)
        return bool(why)

    def _evaluate(self, server_round: int, model: Arrays, *, final: bool) -> dict[str, Any]:
        """Have clients test their models; return the figures. Also call ``evaluate_fn``, if given."""
        figures = self._test(server_round, model, final=final)
        if self._evaluate_fn is not None and (measured := self._evaluate_fn(server_round, pack(model))) is not None:
            self._result.evaluate_metrics_serverapp[server_round] = measured
        return figures

    def _test(self, server_round: int, model: Arrays, *, final: bool) -> dict[str, Any]:
        started = time.perf_counter()
        if not self._federation.evaluated():
            log.info("round %d: there is no client to evaluate on", server_round)
            return {}
        self._found = self._tested(Round(self._federation, self._grid, server_round, final=final), model)
        seconds = round(time.perf_counter() - started, 3)
        self._evaluated = server_round
        metrics = MetricRecord()
        for group, figures in self._found.figures.items():
            shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
            log.info("round %d, %s clients: %s", server_round, group, shown)
            metrics.update({f"{group}-{name}": value for name, value in figures.items()})
        self._result.evaluate_metrics_clientapp[server_round] = metrics
        return {"evaluation_seconds": seconds, **self._found.figures}

    def _tested(self, round: Round, model: Arrays) -> Evaluation:
        """Have the clients to evaluate test their models.

        With secure aggregation a group is an exchange of its own, of which the server learns sums. In buffered rounds
        devices that are busy are tested after the last round alone.
        """
        strategy, federation = self._strategy, self._federation
        self._unmeasured = []
        held_up = (
            self._buffer.busy if self._buffer is not None and federation.roster.deployed and not round.final else ()
        )
        free = [client for client in federation.evaluated() if client not in held_up]
        found = Evaluation({}, self._found.rows)  # of single clients, the last that are known
        for clients in strategy.groups().values() if federation.hidden else [free] if free else []:
            outcome = strategy.measure(round, clients, model)
            self._unmeasured += unmeasured(clients, outcome.clients, outcome.failures)
            new = strategy.figures(outcome)
            lacking = {**found.lacking, **new.lacking}
            found = Evaluation({**found.figures, **new.figures}, new.rows or found.rows, lacking)
        return found

    def _record(self, server_round: int, found: dict[str, Any]) -> None:
        """Write what a round did and the figures of its evaluation to ``metrics.jsonl``, if it has either."""
        federation = self._federation
        if found:
            line = {"round": server_round, "seconds": round(sum(self._seconds), 3)}
            line |= {"bytes_down": federation.bytes_down, "bytes_up": federation.bytes_up}
            federation.run.record({**line, **self._simulated(), **found})

    def _simulated(self) -> dict[str, float]:
        """Return the virtual time since the run's start, in seconds, if a fleet lets it pass."""
        clock = self._federation.clock
        return {} if clock is None else {SIMULATED: round(clock.now, 3)}

    def _checkpoint_due(self, server_round: int) -> bool:
        """Return whether a round ends with a checkpoint of its own, by its number or by the time since the last one."""
        s = self._strategy.settings
        if s.checkpoint_every and server_round % s.checkpoint_every == 0:
            return True
        wait = self._saving / _SHARE if self._saved is None else max(s.checkpoint_seconds, self._saving / _SHARE)
        return s.checkpoint_seconds > 0 and time.monotonic() > (self._saved or self._started) + wait

    def _save(self, server_round: int, model: Arrays) -> None:
        """Write a checkpoint; from now on clients may delete states older than this round's."""
        started = time.monotonic()
        federation, (own, facts) = self._federation, self._strategy.state()
        everything = {**federation.facts(), "buffer": None}
        if self._buffer is not None:
            own, everything["buffer"] = own | self._buffer.arrays(), self._buffer.facts()
        everything |= {"kept": self._kept} if self._kept is not None else {}
        everything |= {"order": list(model), "seconds": self._seconds, "ended": self._ended, "own": facts}
        federation.run.save(Checkpoint(server_round, model, own, everything), federation.best_round)
        federation.checkpoint_round = server_round
        self._saved = time.monotonic()
        self._saving = self._saved - started

    def _best(self, server_round: int, model: Arrays) -> Arrays:
        """Return the model that is left at the end of the run: that of the last round, or of the best evaluation.

        Where the run returns to an earlier round, so do the method's state and, as on resuming, clients' own states;
        bytes, times and what has failed stay what they are. The clients are evaluated once more, with those models.

        Raises:
            ConfigurationError: if no evaluation has reached a client that validates.
        """
        strategy, federation = self._strategy, self._federation
        if strategy.settings.keep == "last" or not self._seconds or self._kept is not None:
            return model
        best = federation.best_round
        if best is None:
            raise ConfigurationError("keep: no client has an example to validate with; raise validation-fraction")
        self._kept = best
        if best != server_round:
            checkpoint = federation.run.saved(best)
            strategy.restore(checkpoint.own, checkpoint.facts["own"])
            federation.lineage = [*federation.lineage, best]
            model = checkpoint.arrays
            log.info("the models of round %d are kept, which are best on held-out examples", best)
            self._test(best, model, final=True)
        self._save(server_round, model)
        return model

    def _report_progress(self, state: str, server_round: int, rounds: int) -> None:
        federation = self._federation
        federation.run.status(
            state, round=server_round, rounds=rounds, loss=self._loss, evaluated=self._evaluated,
            figures=self._found.figures, **recorded(federation.task),
        )  # fmt: skip
        self._telemetry.progress(server_round, rounds, len(federation.clients))
        self._telemetry.write(federation.run.path)

    # ------------------------------------------------------------------------------------------- end

    def _finish(self) -> None:
        """Write ``clients.csv`` and ``summary.json``, and close the telemetry."""
        federation, seconds = self._federation, self._seconds
        if self._found.rows:
            federation.run.write_clients(self._found.rows)
        notes = [*federation.remarks(federation.roster.deployed).warnings, *untested(self._strategy)]
        notes += [*federation.attendance.warnings(), *self._unmeasured]
        if seconds:  # else nothing was trained
            notes += warnings(federation, self._found)
        for note in notes:
            log.info("note: %s", note)
        kept = {} if self._kept is None else {"kept": self._kept}
        summary = summary_of(self._strategy, seconds, self._found, notes, kept | self._simulated())
        federation.run.write_summary(summary)
        self._report_progress("completed", len(seconds), len(seconds))
        self._telemetry.end()
