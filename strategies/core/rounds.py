"""A run, round by round: training, evaluation and checkpoints, from the first round or a checkpoint to the last."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from florilegium.clients.core.network import network_for
from florilegium.clients.core.wire import pack, unpack
from florilegium.common.errors import BudgetSpentError, ConfigurationError, Interrupted
from florilegium.models.parameters import Arrays, exchanged, frozen, is_statistic
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.delta import delta_warning
from florilegium.strategies.core.evaluation import Figures
from florilegium.strategies.core.health import at_chance, diverged
from florilegium.strategies.core.initial import named_by_init
from florilegium.strategies.core.metrics_file import SIMULATED, TRAINING
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.run_folder import Checkpoint, earlier_version
from florilegium.strategies.core.telemetry import Telemetry

if TYPE_CHECKING:
    from florilegium.strategies.core.client_privacy import ClientPrivacy
    from florilegium.strategies.core.cohort import CohortStrategy

log = logging.getLogger("flwr")


class Rounds:
    """Carries out the rounds of one run.

    Args:
        strategy: carries out a single round; its roster must be ready.
        grid: the connection to the nodes.
        last: number of the last round.
        evaluate_fn: called with the model whenever the clients evaluate it.
    """

    _telemetry: Telemetry

    def __init__(
        self,
        strategy: CohortStrategy,
        grid: Grid,
        last: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self._last = last
        self._evaluate_fn = evaluate_fn
        self._result = Result()
        self._seconds: list[float] = []
        self._figures: dict[str, Figures] = {}
        self._evaluated = 0
        self._loss: float | None = None  # of the last round's training
        self._ended = False  # whether the run ends before its last round

    def carry_out(self, initial: ArrayRecord) -> Result:
        """Carry out all remaining rounds; return the final model and the metrics.

        Args:
            initial: the network, initialised from the run's seed.

        Raises:
            ConfigurationError: if the run cannot start.
            RunError: if it cannot continue.
        """
        s = self._strategy.settings
        model, done = self._begin(unpack(initial))
        for server_round in range(done, self._last + 1):
            new = server_round > done
            line: dict[str, Any] = {}
            if new:
                model, line[TRAINING] = self._train(server_round, model)
            self._ended = self._ended or (new and self._strategy.finished(server_round))
            self._ended = self._ended or self._spent_after(server_round, new=new)
            final = bool(server_round == self._last or self._ended)
            run = self._strategy.run
            due = final or bool(new and s.evaluate_every and server_round % s.evaluate_every == 0)
            if due:
                line |= self._evaluate(server_round, model, final=final)
            self._record(server_round, line)
            final = final or run.ended
            if due or (
                new and (run.watcher.interrupted or (s.checkpoint_every and server_round % s.checkpoint_every == 0))
            ):
                self._save(server_round, model)
            self._report_progress("running", server_round, self._last)
            if final:
                break
            if run.watcher.interrupted:
                raise Interrupted(f"stopped after round {server_round}")
        self._finish()
        self._result.arrays = pack(model)
        return self._result

    # ----------------------------------------------------------------------------------------- start

    def _begin(self, network: Arrays) -> tuple[Arrays, int]:
        """Return the model to start or continue from, and the number of finished rounds."""
        strategy = self._strategy
        s, run = strategy.settings, strategy.run
        with earlier_version(s.init):
            first = strategy.begin_from(*named_by_init(s, network)) if s.init else strategy.server_part(network)
        model, done = first, 0
        origins = strategy.origins(strategy.roster.deployed)
        if s.resume and (checkpoint := run.reopen(self._last, origins)) is not None:
            model, done = checkpoint.arrays, checkpoint.round
            strategy.take_back(checkpoint)
            self._seconds, self._ended = list(checkpoint.facts["seconds"]), checkpoint.facts.get("ended", False)
            self._save(done, model)  # records this resume in the lineage, for a later resume
        elif not s.resume:
            run.create(origins)
        run.attempts.begin(strategy.provenance(strategy.roster))
        strategy.telemetry = self._telemetry = Telemetry(run.name, s.method, s.metrics_port)
        if strategy.protection is not None:
            strategy.protection.frozen = self._frozen(first)
            self._plan(strategy.protection, done)
        elif s.privacy.unit == "example":
            examples = max((strategy.roster.clients[client].train for client in strategy.trainable()), default=0)
            if warning := delta_warning("privacy.delta", s.privacy.delta, examples, "examples of the largest client"):
                log.warning("%s", warning)
        strategy.summary()
        return model, done

    def _frozen(self, shared: Arrays) -> frozenset[str]:
        """Return the names of the frozen parameters among the ``shared`` arrays, which get no noise.

        Raises:
            ConfigurationError: if a shared array is a buffer of the network: statistics, with noise, are none.
        """
        s = self._strategy.settings
        if statistics := [name for name in shared if is_statistic(name)]:
            raise ConfigurationError(
                f"model: with noise, the statistics of batch norm ('{statistics[0]}') are none; use a network without "
                "it, or method = 'fedbn'"
            )
        network = network_for(find_spec(s.dataset), s.model, s.seed)
        buffers = exchanged(network).keys() - dict(network.named_parameters()).keys()
        if noisy := [name for name in shared if name in buffers]:
            raise ConfigurationError(
                f"model: '{s.model}' has the buffer '{noisy[0]}', which noise would change; register it with "
                "persistent=False if it is a constant"
            )
        return frozenset(frozen(network)) & shared.keys()

    def _plan(self, protection: ClientPrivacy, done: int) -> None:
        """Distribute the client-level privacy budget over all rounds, ``done`` of which are finished.

        Raises:
            ConfigurationError: if the remaining budget does not suffice for the next round.
        """
        strategy = self._strategy
        cohorts = [strategy.cohort_size(r) for r in range(1, self._last + 1)]
        protection.plan(cohorts, len(strategy.trainable()))
        if done < self._last and self._release_spent(done + 1):
            raise ConfigurationError(
                f"privacy.epsilon: {strategy.settings.privacy.epsilon:g} does not suffice for round {done + 1}; "
                "start a new run with a larger budget"
            )

    # ---------------------------------------------------------------------------------------- during

    def _train(self, server_round: int, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        """Carry out a training round with the clients that are online; wait if there are none.

        Returns:
            The new model, and what the round did (:class:`RoundRecord`).
        """
        strategy, grid = self._strategy, self._grid
        roster = strategy.roster
        roster.refresh(grid)
        if roster.away:
            away = dict.fromkeys(sorted(roster.away), "its device is offline")
            strategy.run.note_failures(server_round, "roster", away)
        if not strategy.trainable() or (roster.away and not strategy.can_pay()):
            roster.wait(grid, strategy.settings.round_timeout, "round-timeout", strategy.can_pay)
        this, before = Round(strategy, grid, server_round), model
        down, up, started = strategy.bytes_down, strategy.bytes_up, time.perf_counter()
        try:
            model = strategy.train_round(this, model)
        except BudgetSpentError as error:
            log.warning("round %d leaves the model as it is: %s", server_round, error)
        strategy.attendance.add(this.record.asked, this.record.failures)
        self._seconds.append(time.perf_counter() - started)
        learning_rate = strategy.settings.learning_rate * strategy.settings.decay(server_round)
        entry = this.record.entry(self._seconds[-1], learning_rate, before, model)
        self._loss = entry.get("loss")
        return model, entry | {"bytes_down": strategy.bytes_down - down, "bytes_up": strategy.bytes_up - up}

    def _spent_after(self, server_round: int, *, new: bool) -> bool:
        """Return whether the privacy budgets do not suffice for another round after ``server_round``."""
        strategy = self._strategy
        members = {*strategy.trainable(), *(client.id for client in strategy.roster.absent("seen"))}
        if strategy.accounts.spent and strategy.accounts.spent >= members:
            log.warning("round %d is the last: all clients have spent their budgets", server_round)
            return True
        return (
            strategy.protection is not None
            and new
            and server_round < self._last
            and self._release_spent(server_round + 1)
        )

    def _release_spent(self, server_round: int) -> bool:
        """Return whether the client-level privacy budget does not suffice for ``server_round``."""
        strategy = self._strategy
        assert strategy.protection is not None
        if not strategy.protection.spent(strategy.cohort_size(server_round) / len(strategy.trainable()), server_round):
            return False
        log.warning("privacy.epsilon is spent: round %d is not carried out", server_round)
        return True

    def _evaluate(self, server_round: int, model: Arrays, *, final: bool) -> dict[str, Any]:
        """Have clients test their models; return the figures. Also call ``evaluate_fn``, if given."""
        figures = self._test(server_round, model, final=final)
        if self._evaluate_fn is not None and (measured := self._evaluate_fn(server_round, pack(model))) is not None:
            self._result.evaluate_metrics_serverapp[server_round] = measured
        return figures

    def _test(self, server_round: int, model: Arrays, *, final: bool) -> dict[str, Any]:
        strategy = self._strategy
        started = time.perf_counter()
        if not strategy.evaluated():
            log.info("round %d: there is no client to evaluate on", server_round)
            return {}
        this = Round(strategy, self._grid, server_round, final=final)
        self._figures = strategy.tested(this, model)
        seconds = round(time.perf_counter() - started, 3)
        self._evaluated = server_round
        metrics = MetricRecord()
        for group, figures in self._figures.items():
            shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
            log.info("round %d, %s clients: %s", server_round, group, shown)
            metrics.update({f"{group}-{name}": value for name, value in figures.items()})
        self._result.evaluate_metrics_clientapp[server_round] = metrics
        return {"evaluation_seconds": seconds, **self._figures}

    def _record(self, server_round: int, found: dict[str, Any]) -> None:
        """Write what a round did and the figures of its evaluation to ``metrics.jsonl``, if it has either."""
        strategy = self._strategy
        if found:
            line = {"round": server_round, "seconds": round(sum(self._seconds), 3)}
            line |= {"bytes_down": strategy.bytes_down, "bytes_up": strategy.bytes_up, **self._simulated(), **found}
            strategy.run.record(line)

    def _simulated(self) -> dict[str, float]:
        """Return the virtual time since the run's start, in seconds, if a fleet lets it pass."""
        clock = self._strategy.clock
        return {} if clock is None else {SIMULATED: round(clock.now, 3)}

    def _save(self, server_round: int, model: Arrays) -> None:
        """Write a checkpoint; from now on clients may delete states older than this round's."""
        own, facts = self._strategy.state()
        if self._strategy.buffer is not None:
            own = own | self._strategy.buffer.arrays()
        everything = {**self._strategy.facts(), "order": list(model), "seconds": self._seconds, "ended": self._ended}
        self._strategy.run.save(Checkpoint(server_round, model, own, {**everything, "own": facts}))
        self._strategy.checkpoint_round = server_round

    def _report_progress(self, state: str, server_round: int, rounds: int) -> None:
        strategy = self._strategy
        strategy.run.status(
            state, round=server_round, rounds=rounds, loss=self._loss, evaluated=self._evaluated,
            figures=self._figures,
        )  # fmt: skip
        self._telemetry.progress(server_round, rounds, len(strategy.roster.clients))
        self._telemetry.write(strategy.run.path)

    # ------------------------------------------------------------------------------------------- end

    def _finish(self) -> None:
        """Write ``clients.csv`` and ``summary.json``, and close the telemetry."""
        strategy, seconds = self._strategy, self._seconds
        s, roster, protection = strategy.settings, strategy.roster, strategy.protection
        if strategy.client_rows:
            strategy.run.write_clients(strategy.client_rows)
        warnings = self._warnings()
        for warning in warnings:
            log.info("note: %s", warning)
        summary = {
            "method": s.method,
            "dataset": s.dataset,
            "seed": s.seed,
            "rounds": len(seconds),
            "clients": len(roster.clients),
            "nodes": len(roster.nodes),
            **({"left_out": roster.left_out} if roster.left_out else {}),
            "seconds": round(sum(seconds), 3),
            "seconds_per_round": round(float(np.median(seconds[1:] or seconds or [0.0])), 4),
            "bytes_down": strategy.bytes_down,
            "bytes_up": strategy.bytes_up,
            **self._simulated(),
            "final": self._figures,
            **strategy.attendance.report(),
            **({"warnings": warnings} if warnings else {}),
            **(strategy.accounts.report(s.privacy.delta) if protection is None else protection.report()),
            **strategy.secure.report(s),
            **strategy.report(),
        }
        strategy.run.write_summary(summary)
        self._report_progress("completed", len(seconds), len(seconds))
        self._telemetry.end()

    def _warnings(self) -> list[str]:
        """Return what the final figures do not show, as sentences (:mod:`florilegium.strategies.core.health`)."""
        strategy, classes = self._strategy, dataset_of(self._strategy.settings).classes
        found = [*strategy.attendance.warnings(), *strategy.unmeasured]
        if not self._seconds:
            return found  # nothing was trained
        test_loss = self._figures.get("seen", {}).get("loss", math.nan)
        found += diverged(strategy.run.metrics.losses(), test_loss, classes)
        for group, figures in self._figures.items():
            if "accuracy_weighted" in figures:
                rows = [row for row in strategy.client_rows if row["group"] == group]
                examples = sum(int(str(row["test_examples"])) for row in rows)
                found += at_chance(group, figures["accuracy_weighted"], examples, self._chance(rows))
        return found

    def _chance(self, rows: Sequence[Mapping[str, object]]) -> float:
        """Return the accuracy of always predicting the most frequent class, for the clients of these rows."""
        if self._strategy.roster.deployed:  # devices do not say how frequent their classes are
            return 1 / dataset_of(self._strategy.settings).classes
        return self._strategy.chance([str(row["client"]) for row in rows])
