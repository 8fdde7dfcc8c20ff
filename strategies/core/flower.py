"""The abstract methods of Flower's ``Strategy`` besides ``start``: hooks for one exchange per round, not used here.

The strategies of this package carry out rounds themselves, with as many exchanges as a method needs
(:meth:`florilegium.strategies.core.cohort.CohortStrategy.train_round`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class WithoutHooks(Strategy):
    """A Flower strategy that overrides all of ``start``, so that its hooks are never called."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> NoReturn:
        """Raise :class:`NotImplementedError`: Flower's hook is not used; see ``train_round``."""
        raise NotImplementedError("rounds are carried out by train_round(round, model)")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raise :class:`NotImplementedError`: Flower's hook is not used; see ``train_round``."""
        raise NotImplementedError("rounds are carried out by train_round(round, model)")

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> NoReturn:
        """Raise :class:`NotImplementedError`: Flower's hook is not used; see ``measure``."""
        raise NotImplementedError("clients are evaluated by measure(round, clients, model)")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raise :class:`NotImplementedError`: Flower's hook is not used; see ``measure``."""
        raise NotImplementedError("clients are evaluated by measure(round, clients, model)")
