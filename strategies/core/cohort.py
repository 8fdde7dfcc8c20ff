"""The base strategy of all methods, a Flower ``Strategy`` that samples clients, not nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.core.flower import WithoutHooks
from florilegium.strategies.core.hooks import Hooks
from florilegium.strategies.core.readiness import check_ready
from florilegium.strategies.core.rounds import Rounds

log = logging.getLogger("flwr")


class CohortStrategy(Hooks, WithoutHooks):
    """Rounds of exchanges with sampled cohorts of clients, evaluated and checkpointed.

    A method overrides what :class:`Hooks` has. Of Flower's ``Strategy``, ``start`` is all that is used.
    """

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
        federation = self.federation
        if advice := federation.client.finetuning_advice(self.settings.finetune_epochs):
            log.warning("method '%s': %s", self.settings.method, advice)
        federation.roster.unfit = self.unfit
        federation.roster.trains_with(federation.start.frozen, federation.start.built)
        federation.roster.wait(grid, timeout)
        check_ready(self)
        return Rounds(self, grid, num_rounds, evaluate_fn).carry_out(initial_arrays)
