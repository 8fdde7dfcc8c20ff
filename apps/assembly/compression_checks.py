"""Checks before a run starts whose clients compress their updates."""

from __future__ import annotations

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.settings.server import ServerSettings


def check_compression(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if updates cannot be compressed.

    Args:
        settings: the run's configuration.
        gap: why the run's method cannot compress; "" if it can.
    """
    p, scheme = settings.privacy, settings.compression.scheme
    if scheme == "none":
        return
    key = f"compression.scheme: '{scheme}' is not supported with"
    if gap:
        raise ConfigurationError(f"{key} method '{settings.method}': {gap}")
    if settings.secure_aggregation:
        raise ConfigurationError(
            f"{key} secure-aggregation, whose sums are of integers: it already rounds updates to 32 bits; set it to "
            "'none'"
        )
    if settings.mode == "buffered" and settings.compression.feeds_back:
        raise ConfigurationError(
            f"{key} mode = 'buffered', in which the server uses updates of earlier rounds: a client could not tell "
            "which of its updates was used last; use 'quantise' or 'none'"
        )
    if p.unit == "client" and settings.compression.feeds_back:
        raise ConfigurationError(
            f"{key} privacy.unit = 'client': what a client still owes depends on the rounds in which it took part, "
            "which the account does not cover; use 'quantise' or 'none'"
        )
    if p.noise_at == "device":
        raise ConfigurationError(
            f"{key} privacy.noise-at = 'device': the account is for a sum of noise that nobody rounds; set it to "
            "'server'"
        )
    if p.clip_quantile:
        raise ConfigurationError(f"{key} privacy.clip-quantile: the bound is fixed then; set it to 0")
