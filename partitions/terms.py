"""The terms on which a client's data take part: what of them a run may use, beside their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """What of a client's data a run may use.

    Attributes:
        lacking: input columns that there are none of, that the owner withholds, or that do not fit the dataset's
            schema; their features have no meaning.
        extremes: whether the owner lets the least and the largest number of a column leave.
        row_key: a secret that the devices share and the server does not know, for hashes of rows; b"": none.
    """

    lacking: frozenset[str] = frozenset()
    extremes: bool = True
    row_key: bytes = b""

    def lacks(self, columns: Iterable[str]) -> list[str]:
        """Return those of some columns that the client lacks, sorted."""
        return sorted(self.lacking & {*columns})


ALL = Terms()
"""Terms of simulated clients: everything may be used."""
