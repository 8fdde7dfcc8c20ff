"""Models of several clusters in one set of named arrays, as strategies hold them and IFCA sends them.

Arrays that all clusters share have the network's names. Those of cluster j are named ``beside.<j>.<name>``, so that a
client need not return the ones that it did not train.
"""

from __future__ import annotations

from florilegium.clients.core.wire import BESIDE
from florilegium.models.parameters import Arrays

CLUSTER = "cluster"
"""Name of the metric, and of the column of ``clients.csv``, with the number of a client's cluster."""


def named(cluster: int, own: Arrays) -> Arrays:
    """Return the ``own`` arrays of a cluster's model, renamed for a set of several models."""
    return {f"{BESIDE}{cluster}.{name}": array for name, array in own.items()}


def of_clusters(models: Arrays) -> dict[int, Arrays]:
    """Return the arrays that clusters do not share, by cluster and by the network's names."""
    found: dict[int, Arrays] = {}
    for name, array in models.items():
        if name.startswith(BESIDE):
            cluster, _, own = name.removeprefix(BESIDE).partition(".")
            found.setdefault(int(cluster), {})[own] = array
    return found
