"""Local training, server side: the cohort of each round goes on training, each client its own model.

Nothing is sent and nothing but numbers comes back; the same number of rounds and the same cohorts as FedAvg make
the computation equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.cohort import CohortStrategy


class Local(CohortStrategy):
    """Each client alone."""

    broadcasts_model: ClassVar[bool] = False

    @classmethod
    def transfer_gap(cls, hyper: Any) -> str:
        """Return what is missing."""
        return "every client has a network of its own"

    def privacy_gap(self) -> str:
        """Return why the keys of table ``privacy`` are not for this method."""
        return "nothing is shared, so that there is nothing to protect"

    def trainable(self) -> list[str]:
        """Return all labeled clients: where nothing is shared, the unseen ones train as well."""
        return self.roster.ids("seen", "unseen")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the round's cohort to go on training."""
        return self.requests(self.sample(server_round), server_round, "train", reduce="sum", **config)  # type: ignore[arg-type]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate nothing but the training loss."""
        outcome = self.require(self.collect(replies), self.wanted)
        return None, MetricRecord({"loss": outcome.mean("loss"), "clients": len(outcome.clients)})
