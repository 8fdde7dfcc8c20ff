"""Registry of partitioners: the suite's own table, and what other packages provide."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from florilegium.common.plugins import Registry
from florilegium.common.settings import Section
from florilegium.partitions.own_partitioners import OWN_PARTITIONERS
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.settings import FederationSettings

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner

    from florilegium.partitions.partitioning import Make


def _read(found: Any, reference: str) -> Partitioning:
    """Return the partitioner that another package provides.

    It is a :class:`Partitioning`, a subclass of flwr-datasets' ``Partitioner``, or a function ``make``.

    Raises:
        TypeError: if ``found`` is none of these, or its parts are of other types.
    """
    from flwr_datasets.partitioner import Partitioner

    if isinstance(found, type) and issubclass(found, Partitioner):
        found = Partitioning((found.__doc__ or found.__name__).strip().splitlines()[0], _maker(found))
    elif inspect.isfunction(found):
        found = Partitioning((found.__doc__ or found.__name__).strip().splitlines()[0], found)
    if not isinstance(found, Partitioning):
        raise TypeError(
            "expected a Partitioning, a subclass of flwr_datasets.partitioner.Partitioner, or a function (settings, "
            f"rows, seed) (found: {found!r:.80})"
        )
    section = found.section()
    if not (isinstance(section, type) and issubclass(section, Section)):
        raise TypeError(f"its keys must be a subclass of Section (found: {section!r:.80})")
    if (found.make is None) == (found.split is None):
        raise TypeError("it must have either make or split")
    return found


def _maker(cls: type[Partitioner]) -> Make:
    """Return the function that makes partitioners of a class from the arguments that it takes.

    Raises:
        TypeError: if it requires other arguments than ``num_partitions``, ``partition_by`` and ``seed``.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    known = ("num_partitions", "partition_by", "seed")
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in known
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown:
        raise TypeError(
            f"{cls.__name__} requires the argument '{unknown[0]}'; only {', '.join(known)} are given. Provide a "
            "function (settings, rows, seed) that returns a partitioner"
        )
    taken = {parameter.name for parameter in parameters}

    def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
        values = {"num_partitions": settings.num_clients, "partition_by": "label", "seed": seed}
        return cls(**{name: value for name, value in values.items() if name in taken})

    return make


PARTITIONERS: Registry[Partitioning] = Registry("partitioner", "a partitioner", OWN_PARTITIONERS, _read)
"""All partitioners by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


def partitioner_table(name: str) -> str:
    """Return the name of the configuration table that holds a partitioner's own keys; "" if it has none.

    Raises:
        ConfigurationError: if there is no such partitioner, or its table has the name of one of the suite's own.
    """
    own = PARTITIONERS[name]
    return PARTITIONERS.table(name, own.table) if own.section().model_fields else ""


def file_keys(partitioner: str) -> list[str]:
    """Return the flat keys of a partitioner whose values are paths of files; empty for an unknown partitioner."""
    if partitioner not in PARTITIONERS:
        return []
    return [f"{partitioner_table(partitioner)}.{name}" for name in PARTITIONERS[partitioner].files]
