"""Checks before a run in buffered asynchronous rounds starts."""

from __future__ import annotations

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.settings.server import ServerSettings


def check_buffered(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if a run cannot have ``mode = "buffered"``.

    Args:
        settings: the run's configuration.
        gap: why the server step of the run's method is no weighted mean of updates; "" if it is one.
    """
    if gap:
        raise ConfigurationError(f"mode: 'buffered' is not supported by method '{settings.method}': {gap}")
    if settings.privacy.unit != "none":
        raise ConfigurationError(
            f"privacy.unit: '{settings.privacy.unit}' counts on cohorts that are drawn at random; with mode = "
            "'buffered' fast clients take part more often, and nothing is amplified. Use mode = 'synchronous'"
        )
    if settings.secure_aggregation:
        raise ConfigurationError(
            "secure-aggregation: its sums are over a cohort that begins together; with mode = 'buffered' there is "
            "none. Use mode = 'synchronous'"
        )
    if settings.aggregation != "mean":
        raise ConfigurationError(
            f"aggregation: '{settings.aggregation}' has no place for the weights of stale updates; with mode = "
            "'buffered' set it to 'mean'"
        )
    if settings.oversample > 1:
        raise ConfigurationError("oversample: with mode = 'buffered' no client is asked in vain; set it to 1")
    if settings.final_participation:
        raise ConfigurationError("final-participation: with mode = 'buffered' all rounds are alike; set it to 0")
