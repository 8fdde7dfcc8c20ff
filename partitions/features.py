"""The modelled feature of a client's examples: the label, a categorical column, or a numeric column in bins.

The counts of its values are the client's histogram (Scott, thesis, section 3.3.1). Values are computed from the encoded
examples, so that a device and a simulation give the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, nearest
from florilegium.partitions.sources.date_parts import width
from florilegium.partitions.spec import DatasetSpec

Values = NDArray[np.int64]
LABEL = "label"
_RANGE = re.compile(r"([^:]+):([^:]+):([^:]+)")


@dataclass(frozen=True)
class Feature:
    """A feature with C categories.

    Attributes:
        name: "label", or the name of the column.
        categories: number of categories C.
        values: function that returns the category of every example, (n,) in 0..C−1, for encoded inputs (n, …) and
            labels (n,); −1 for a number outside all bins.
    """

    name: str
    categories: int
    values: Callable[[NDArray[np.generic], NDArray[np.generic]], Values]


def parse_edges(text: str) -> list[float]:
    """Parse a list of bin edges such as ``"0:200000:5000, inf"``: numbers, or ranges start:stop:step including stop.

    Raises:
        ValueError: unless the list has at least two edges, in increasing order.
    """
    edges: list[float] = []
    try:
        for part in filter(None, (part.strip() for part in text.split(","))):
            if match := _RANGE.fullmatch(part):
                start, stop, step = map(float, match.groups())
                edges += [start + step * i for i in range(round((stop - start) / step) + 1)]
            else:
                edges.append(float(part))
    except (ValueError, ZeroDivisionError, OverflowError):
        edges = []
    if len(edges) < 2 or not all(a < b for a, b in pairwise(edges)):
        raise ValueError(f"'{text}' is not a list of increasing edges, such as '0,18,65,inf' or '0:200000:5000,inf'")
    return edges


def uncovered(feature: str, bins: str) -> str:
    """Return the error message for a number outside all bins.

    It does not quote the number, since a device sends the message to the server.
    """
    return f"mdm.bins: a number in column '{feature}' lies in none of the bins '{bins}'; add edges, -inf or inf"


def find_feature(spec: DatasetSpec, name: str, bins: str) -> Feature:
    """Return the feature ``name`` of a dataset.

    Args:
        spec: the dataset.
        name: "label", or a column of a table.
        bins: edges of the half-open intervals [a, b) that divide a numeric column; "" for any other feature.

    Raises:
        ConfigurationError: if there is no such feature, or bins are missing or not needed.
    """
    schema = spec.table
    numbers = list(schema.numbers) if schema else []
    words = list(schema.categories) if schema else []
    if name not in (LABEL, *numbers, *words):
        known = ", ".join([LABEL, *numbers, *words])
        raise ConfigurationError(
            f"mdm.feature: '{name}' is no feature of '{spec.name}'{nearest(name, [LABEL, *numbers, *words])} "
            f"Known: {known}."
        )
    if (name in numbers) != bool(bins):
        raise ConfigurationError(
            f"mdm.bins: '{name}' holds numbers, which are counted in bins: give their edges" if name in numbers
            else f"mdm.bins: '{name}' has categories already; leave the bins out (found: '{bins}')"
        )  # fmt: skip
    if name == LABEL:
        task = spec.learned
        if not task.num_strata:
            raise ConfigurationError(f"mdm.feature: the targets of '{spec.name}' are no classes; name another column")
        return Feature(name, task.num_strata, lambda x, y: task.strata(y).astype(np.int64))
    assert schema is not None
    if name in words:
        earlier = words[: words.index(name)]
        start = (
            len(numbers)
            + len(schema.dates) * width(schema.date_parts)
            + sum(len(schema.categories[word]) for word in earlier)
        )
        stop = start + len(schema.categories[name])
        return Feature(name, stop - start, lambda x, y: x[:, start:stop].argmax(axis=1).astype(np.int64))
    column, (mean, std) = numbers.index(name), schema.numbers[name]
    edges = parse_edges(bins)
    # Edges are encoded like the values, so that a number equal to an edge falls into the bin above it.
    encoded = ((np.array(edges, np.float32).astype(np.float64) - mean) / std).astype(np.float32)

    def binned(x: NDArray[np.generic], y: NDArray[np.generic]) -> Values:
        values = x[:, column].astype(np.float32)
        outside = ~((values >= encoded[0]) & (values < encoded[-1]))  # NaN, too
        return np.where(outside, -1, np.searchsorted(encoded, values, side="right").astype(np.int64) - 1)

    return Feature(name, len(edges) - 1, binned)
