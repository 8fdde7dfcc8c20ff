"""The compression scheme that a run's configuration names."""

from __future__ import annotations

from florilegium.clients.core.compression.low_rank import LowRank
from florilegium.clients.core.compression.quantise import Quantise
from florilegium.clients.core.compression.scheme import Scheme
from florilegium.clients.core.compression.settings import CompressionSettings
from florilegium.clients.core.compression.top_k import TopK


def scheme_of(settings: CompressionSettings) -> Scheme | None:
    """Return the scheme by which clients compress their updates; None if they do not."""
    match settings.scheme:
        case "none":
            return None
        case "quantise":
            return Quantise(settings.bits)
        case "top-k":
            return TopK(settings.share)
        case "low-rank":
            return LowRank(settings.rank)
