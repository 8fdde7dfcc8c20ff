"""Keys of MDM."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.settings import Section, key, parse_whole
from florilegium.privacy.delta import MOST_DELTA

STARTS = 8
"""Default number of random starts; in a private run they would share one clipping bound, and so the noise."""


def _check_sizes(text: str) -> str:
    if text and (len(edges := parse_whole(text)) < 2 or any(a >= b for a, b in pairwise(edges))):
        raise ValueError(f"'{text}' is not a list of increasing edges, such as '1,10,100,1000'")
    return text


def _check_bins(text: str) -> str:
    from florilegium.partitions.features import parse_edges

    if text:
        parse_edges(text)
    return text


def _check_different(text: str) -> str:
    if len(set(numbers := parse_whole(text))) < len(numbers):
        raise ValueError(f"'{text}' has a number twice")
    return text


class MDMHyper(Section):
    """Keys ``mdm.*``."""

    components: Annotated[str, AfterValidator(_check_different)] = key(
        "3", "K, number of components; or several numbers to choose from, separated by commas"
    )
    restarts: int = key(
        0,
        "random starts of each fit, carried on together, of which the best is kept; 0: 8, or 1 in a private run",
        ge=0,
    )
    feature: str = key("label", "what is counted: `label`, or a column of a table", min_length=1)
    bins: Annotated[str, AfterValidator(_check_bins)] = key(
        "", "bin edges for a numeric column, for example `0:200000:5000,inf`"
    )
    size_bins: Annotated[str, AfterValidator(_check_sizes)] = key(
        "", 'bin edges for clients\' numbers of examples, for example `1,10,100,1000`; "": one bin for each number'
    )
    max_size: int = key(
        0, "M, largest number of examples, if `size-bins` is empty; 0: that of the largest client", ge=0
    )
    validation_fraction: float = key(0.1, "share of the clients that is held out to choose among several K", ge=0, lt=1)
    tolerance: float = key(
        1e-06,
        "stop when each mean log-likelihood changes by less than this, after a round with all clients; 0: never",
        ge=0,
    )
    privacy_unit: Literal["client", "example", "none"] = key(
        "none", "unit that the guarantee protects; `none`: no noise"
    )
    epsilon: float = key(8.0, "ε of the whole run", gt=0)
    delta: float = key(1e-06, "δ of the whole run", gt=0, le=MOST_DELTA)
    clip: float = key(5.0, "private runs: norm to which all that a client sends in one exchange is clipped", gt=0)

    @property
    def fitted(self) -> list[int]:
        """Numbers of components of all mixtures that are fitted together: each K once for every start."""
        starts = self.restarts or (STARTS if self.privacy_unit == "none" else 1)
        return [k for k in parse_whole(self.components) for _ in range(starts)]

    @field_validator("max_size")
    @classmethod
    def _is_alone(cls, size: int, info: ValidationInfo) -> int:
        if size and info.data.get("size_bins"):
            raise ValueError("mdm.size-bins says already which sizes there are; leave one of them out")
        return size
