"""Keys of MDM."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.settings import Section, key, parse_whole


def _check_sizes(text: str) -> str:
    if text and (len(edges := parse_whole(text)) < 2 or any(a >= b for a, b in pairwise(edges))):
        raise ValueError(f"'{text}' lists no increasing edges, such as '1,10,100,1000'")
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

    components: Annotated[str, AfterValidator(_check_different)] = key("3", "K, or several to choose from in one run")
    feature: str = key("label", "what is counted: `label`, or a column of a table", min_length=1)
    bins: Annotated[str, AfterValidator(_check_bins)] = key(
        "", "edges of the bins a column of numbers is counted in, as `0:200000:5000,inf`"
    )
    size_bins: Annotated[str, AfterValidator(_check_sizes)] = key(
        "", 'edges of bins of clients\' sizes, as `1,10,100,1000`; "": a bin for every size'
    )
    max_size: int = key(0, "M, the largest size, where every size has a bin; 0: the largest there is", ge=0)
    validation_fraction: float = key(
        0.1, "share of the clients that choose among several K, and do nothing else", ge=0, lt=1
    )
    tolerance: float = key(
        1e-06, "stop when no mean log-likelihood changes by this; where all clients take part in a round", ge=0
    )
    privacy_unit: Literal["client", "example", "none"] = key("none", "what the guarantee is for; none: no noise")
    epsilon: float = key(8.0, "ε of the whole run", gt=0)
    delta: float = key(1e-06, "δ of the whole run", gt=0, lt=1)
    clip: float = key(5.0, "bound on the norm of all that a client sends at a time, in a private run", gt=0)

    @field_validator("max_size")
    @classmethod
    def _is_alone(cls, size: int, info: ValidationInfo) -> int:
        if size and info.data.get("size_bins"):
            raise ValueError("mdm.size-bins says already which sizes there are; leave one of them out")
        return size
