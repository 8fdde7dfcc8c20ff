"""What a clustering takes from clients: numbers that points within the declared range of the data can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from statistics import median_high

import numpy as np

from florilegium.clients.core.wire import Reply
from florilegium.models.clustering import Array
from florilegium.partitions.spec import DatasetSpec
from florilegium.strategies.layers.bound import FEWEST, MEDIANS

SLACK = 1e-5
"""Relative excess over a bound that rounding explains."""


def box(spec: DatasetSpec) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each feature, (d,); infinite where the dataset declares none."""
    d = prod(spec.shape)
    if spec.kind != "image":
        return np.full(d, -np.inf), np.full(d, np.inf)
    mean, std = (np.repeat(values, d // len(values)) for values in (spec.mean, spec.std))
    return -mean / std, (spec.brightest / 255 - mean) / std


def check_centers(spec: DatasetSpec, client: str, centers: Array) -> None:
    """Raise ``ValueError`` if centres (k, d) of a client's points lie outside of the range of the data."""
    low, high = box(spec)
    slack = SLACK * (1 + np.where(np.isfinite(high), high - low, 0.0))
    if outside := np.argwhere((centers < low - slack) | (centers > high + slack)).tolist():
        row, column = outside[0]
        raise ValueError(
            f"client {client} has a centre with {centers[row, column]:g} in feature {column}, where the data lie "
            f"between {low[column]:g} and {high[column]:g}"
        )


def check_sums(reply: Reply, reach: float, *, capped: bool) -> None:
    """Raise ``ValueError`` if sums over clusters, without noise, cannot be those of a node's points.

    Args:
        reply: the node's reply, with ``sums`` (k, d) and ``counts`` (k,), or ``weights`` (s,).
        reach: the largest norm of a point; infinite if it is not known.
        capped: whether a client counts as one point in each cluster at most.
    """
    if not reply.clients:
        return
    counts = reply.arrays.get("counts", reply.arrays.get("weights", np.zeros(0)))
    most = sum(reply.metrics["num-examples"])
    each, total = (float(len(reply.clients)), np.inf) if capped else (most, most)
    if (counts < -SLACK).any() or (counts > each * (1 + SLACK)).any() or counts.sum() > total * (1 + SLACK):
        raise ValueError(
            f"its clusters have {counts.min():g} to {counts.max():g} points, {counts.sum():g} together, of {most:g}"
        )
    if "sums" in reply.arrays and np.isfinite(reach):
        lengths = np.linalg.norm(reply.arrays["sums"], axis=1)
        if (far := lengths - reach * counts * (1 + SLACK) - SLACK).max() > 0:
            j = int(far.argmax())
            raise ValueError(
                f"the sum of cluster {j} has norm {lengths[j]:.4g}; {counts[j]:g} points of norm {reach:.4g} or less "
                "have no such sum (kmeans.radius, or the range of the data)"
            )


def far_away(clients: Sequence[str], centers: Sequence[Array]) -> Mapping[str, str]:
    """Return why clients' centres are not used that are much longer than most clients' are, by client.

    This judges data whose range nobody has declared. It needs three clients, of which most must be honest.

    Args:
        clients: the clients.
        centers: the centres (k, d) of each.
    """
    lengths = [float(np.linalg.norm(own, axis=1).max()) for own in centers]
    if len(lengths) < FEWEST:
        return {}
    most = MEDIANS * median_high(lengths)
    return {
        client: f"a centre has norm {length:.4g}, more than {MEDIANS:g} times the median of all clients' ({most:.4g})"
        for client, length in zip(clients, lengths, strict=True)
        if length > most
    }
