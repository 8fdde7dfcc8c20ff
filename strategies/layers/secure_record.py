"""What ``summary.json`` says of a run's secure sums: their parameters, and the probability that any reveals more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from florilegium.common.errors import ConfigurationError
from florilegium.privacy.secure_sum.plan import ImpossibleError
from florilegium.strategies.layers.secure_exchange import SecureExchange, plan_for
from florilegium.strategies.settings.server import ServerSettings


def check_sizes(settings: ServerSettings, sizes: Iterable[tuple[str, int]]) -> None:
    """Check that secure sums are possible of so many clients.

    Args:
        settings: the run's configuration.
        sizes: groups of clients in words, and how many clients they have.

    Raises:
        ConfigurationError: if a group is too small.
    """
    for group, size in sizes:
        try:
            plan_for(settings, size)
        except ImpossibleError as error:
            raise ConfigurationError(
                f"secure-aggregation: {group} has {size} clients: {error} (keys secure-colluding, secure-vanishing). "
                "Ask more clients, or lower these shares"
            ) from error


class SecureRecord:
    """Collects the parameters of the secure sums of a run."""

    def __init__(self) -> None:
        self._noted: dict[str, float] = {}

    def note(self, exchange: SecureExchange) -> None:
        """Add an exchange that was carried out, whether or not it has failed."""
        noted, plan = self._noted, exchange.plan
        noted["exchanges"] = noted.get("exchanges", 0) + 1
        noted["rounding_error"] = max(noted.get("rounding_error", 0.0), exchange.error)
        if plan is not None:
            noted["parties"] = min(noted.get("parties", plan.parties), plan.parties)
            noted["neighbours"] = max(noted.get("neighbours", 0), plan.degree)
            noted["exposed"] = noted.get("exposed", 0.0) + exchange.exposed
            noted["one_kind"] = min(noted.get("one_kind", True), plan.one_kind)

    def meet(self, chance: float) -> None:
        """Add the probability that more clients that collude meet in a group than its sum is planned for."""
        self._noted["exposed"] = self._noted.get("exposed", 0.0) + chance

    def facts(self) -> dict[str, Any]:
        """Return the record for checkpoints; JSON values."""
        return dict(self._noted)

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the record that :meth:`facts` returned."""
        self._noted = dict(facts)

    def report(self, settings: ServerSettings, named: Mapping[str, str]) -> dict[str, Any]:
        """Return the block ``secure_aggregation`` of ``summary.json``; empty without secure sums.

        Args:
            settings: the run's configuration.
            named: why clients are left out.
        """
        if not self._noted:
            return {}
        stated = {"colluding": settings.secure_colluding, "vanishing": settings.secure_vanishing}
        return {"secure_aggregation": {**stated, **self._noted, **({"left_out": {**named}} if named else {})}}
