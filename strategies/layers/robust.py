"""Robust aggregation (``aggregation``): a median, trimmed mean or Krum in place of the mean of a cohort's updates."""

from __future__ import annotations

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.core.messages import Messages
from florilegium.strategies.core.settings import ServerSettings

NOT_A_MEAN = {
    "sum": "",
    "parts": "it averages each part over the clients that train it",
    "groups": "it averages each group of clients by itself",
    "single": "it combines what single clients return in its own way",
    "statistics": "it adds up statistics, not updates",
    "nothing": "",
}


def gap(messages: Messages) -> str:
    """Return what the server computes instead of a mean of the cohort's updates, "" if it computes one, or none."""
    return NOT_A_MEAN[messages.returns]


def check(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if ``aggregation`` is not "mean" and the method computes something else.

    Args:
        settings: the run's configuration.
        gap: what the run's method computes instead of a mean; "" if it computes one.
    """
    if gap and settings.aggregation != "mean":
        raise ConfigurationError(
            f"aggregation: '{settings.aggregation}' is not supported by method '{settings.method}': {gap}; use 'mean'"
        )
