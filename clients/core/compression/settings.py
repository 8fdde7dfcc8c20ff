"""The configuration keys for compressed updates, table ``compression``."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class CompressionSettings(Section):
    """How clients compress the updates that they return."""

    title = "Compression of updates"

    scheme: Literal["none", "quantise", "top-k", "low-rank"] = key(
        "none",
        "compression of clients' updates: none, stochastic quantisation, the largest entries, or matrices of low rank "
        "([more](compression.md))",
    )
    bits: int = key(8, "for `scheme = quantise`: bits for each entry", ge=1, le=8, where="compression.scheme=quantise")
    share: float = key(
        0.01,
        "for `scheme = top-k`: share of each array's entries that is sent",
        gt=0,
        le=1,
        where="compression.scheme=top-k",
    )
    rank: int = key(
        2, "for `scheme = low-rank`: rank of the matrices that are sent", ge=1, where="compression.scheme=low-rank"
    )

    @property
    def feeds_back(self) -> bool:
        """Whether a client keeps what a message leaves out, and adds it to its next update (error feedback)."""
        return self.scheme in ("top-k", "low-rank")
