"""Choose the rows that the server holds: few, and partly of another kind than the clients'.

The server may hold ``server-examples`` rows like the clients' and ``server-ood-examples`` out-of-distribution rows.
No client holds these rows. Synthetic datasets do not use this module; they draw the server's examples themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.partitions.settings import FederationSettings, parse_rows
from florilegium.partitions.shares import Rows
from florilegium.partitions.sources.names import name_of
from florilegium.partitions.spec import Dataset, DatasetSpec, Split
from florilegium.tasks.task import CLASSES

LABEL = "label"
"""The column of a choice of rows that stands for the label, whatever its name."""


def choose_rows(settings: FederationSettings, dataset: Dataset, rows: Rows) -> tuple[Rows, Rows]:
    """Divide the shuffled training ``rows`` into those for the clients and those that the server holds.

    Raises:
        ConfigurationError: if a key names a column or value that does not exist, or if out-of-distribution rows are
            requested without saying which rows those are.
        DataError: if there are fewer rows than requested.
    """
    s = settings
    if dataset.server is not None:
        for key, choice in (("client-rows", s.client_rows), ("server-ood-rows", s.server_ood_rows)):
            if choice:
                raise ConfigurationError(
                    f"{key}: '{s.dataset}' is generated from the settings; there are no rows to choose (found: "
                    f"{choice!r})"
                )
        if s.share_out == "server":
            raise ConfigurationError(f"share-out: '{s.dataset}' makes the server's data, which cannot be shared out")
        return rows, rows[:0]
    own = rows[matching("client-rows", s.client_rows, dataset.spec, dataset.train, rows)]
    if not s.server_examples and not s.server_ood_examples:
        if s.share_out == "server":
            raise ConfigurationError("share-out: the server has no rows to share out; give it server-examples")
        return own, rows[:0]
    if s.server_ood_examples and not s.server_ood_rows:
        raise ConfigurationError(
            f"server-ood-rows: say which rows server-ood-examples = {s.server_ood_examples} are chosen from, as in "
            "'workclass=Private'"
        )
    if s.server_ood_examples and not s.client_rows:
        raise ConfigurationError(
            "client-rows: without it clients hold rows of every kind, and none is out-of-distribution"
        )
    strata = dataset.spec.learned.strata(dataset.train.y)
    held = np.unique(strata[own])
    if s.server_missing >= len(held):
        raise ConfigurationError(
            f"server-missing: the clients have {len(held)} classes, of which at least one must be left"
        )
    present = own[np.isin(strata[own], held[: len(held) - s.server_missing])]
    strange = rows[
        matching("server-ood-rows", s.server_ood_rows, dataset.spec, dataset.train, rows) & ~np.isin(rows, own)
    ]
    for key, wanted, pool in (
        ("server-examples", s.server_examples, present),
        ("server-ood-examples", s.server_ood_examples, strange),
    ):
        if wanted > len(pool):
            raise DataError(f"{key}: '{s.dataset}' has {len(pool)} rows to choose {wanted} from")
    server = np.concatenate([present[: s.server_examples], strange[: s.server_ood_examples]])
    return (own[~np.isin(own, server)], server) if s.share_out == "clients" else (server, rows[:0])


def matching(key: str, choice: str, spec: DatasetSpec, split: Split, rows: Rows) -> NDArray[np.bool_]:
    """Return a mask (n,) of those ``rows`` of a split that ``choice``, the value of ``key``, selects; "" selects all.

    Raises:
        ConfigurationError: naming ``key``, if there is no such column, or it has no such value.
    """
    chosen = parse_rows(choice)
    if chosen is None:
        return np.ones(len(rows), dtype=bool)
    column, values = chosen
    columns = {LABEL: _labels(spec, split), **split.clients}
    if column not in columns:
        raise ConfigurationError(
            f"{key}: '{column}' is not a column of '{spec.name}' to choose rows by{nearest(column, columns)} "
            f"Known: {', '.join(columns)}."
        )
    values = values if column == LABEL else [name_of(value) for value in values]
    known = sorted(set(columns[column].tolist()))
    for value in values:
        if value not in known:
            raise ConfigurationError(
                f"{key}: column '{column}' has no value '{value}'{nearest(value, known)} It has {len(known)}: "
                f"{', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
            )
    return np.isin(columns[column][rows], values)


def _labels(spec: DatasetSpec, split: Split) -> NDArray[np.str_]:
    """Return the label of every row of a split, as written in the source file; empty without classes."""
    names = np.array([str(label) for label in spec.labels or range(spec.classes)])
    result: NDArray[np.str_] = names[split.y] if CLASSES in spec.learned.provides else np.array([], str)
    return result
