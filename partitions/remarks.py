"""What a reader of a run's figures must know of simulated clients' data: rows that are left out, or equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from florilegium.common.memo import remembered
from florilegium.partitions.describing import decisions
from florilegium.partitions.duplicates import duplicates
from florilegium.partitions.federation import federate
from florilegium.partitions.natural_clients import client_column, client_names, with_enough_tests
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation
from florilegium.partitions.sources.columns import listed
from florilegium.partitions.sources.places import LEFT_OUT
from florilegium.partitions.spec import Dataset


@dataclass(frozen=True)
class Remarks:
    """What is said of the data of a federation.

    Attributes:
        warnings: what may change how figures are read, in sentences; also for the summary and reports.
        lines: what else is worth a line of the log.
        duplicates: numbers of equal rows (:attr:`florilegium.partitions.duplicates.Duplicates.counts`).
    """

    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    duplicates: Mapping[str, int] | None = None


@remembered(4)
def remarks(settings: FederationSettings) -> Remarks:
    """Return what is to be said of the data of ``settings``.

    Raises:
        DataError: as :func:`federate`, and if rows are equal and ``duplicates`` is "refuse".
    """
    federation, dataset = federate(settings)
    inferred = decisions(dataset.spec, settings.cache_dir)
    read = [f"dataset: {line}" for line in (*inferred, *dataset.notes)]
    found = duplicates(settings, federation, dataset)
    left = [line for line in read if line.startswith(f"dataset: {LEFT_OUT}")]
    skipped = _skipped(settings, federation, dataset)
    if dataset.validation is not None:
        where = f"part 'validation', {len(dataset.validation)} rows"
        asked = getattr(settings, "validation_fraction", 0) and federation.validation is not None
        (read if asked else left).append(
            f"dataset: validation examples: {where}" if asked else f"dataset: {LEFT_OUT}{where}, since "
            "validation-fraction is 0 or clients are of domains"
        )  # fmt: skip
    warnings = [*left, *([federation.notes] if federation.notes else []), *skipped, *found.warnings]
    told = [line for line in read if line not in left] + found.rest + ([] if found.warnings else [*found.leaks])
    return Remarks(tuple(warnings), tuple(told), found.counts)


def _skipped(settings: FederationSettings, federation: Federation, dataset: Dataset) -> list[str]:
    """Return a sentence on natural clients that ``min-test-examples`` skips."""
    if not settings.min_test_examples:
        return []
    column = client_column(settings, dataset)
    names = client_names(dataset.train, column)
    rows = with_enough_tests(settings, dataset, np.arange(len(names)), column, federation.test_from_train)
    everyone, left = np.unique(names), np.unique(names[rows])
    gone = sorted({*everyone.tolist()} - {*left.tolist()})
    return [f"min-test-examples: {len(gone)} of {len(everyone)} clients are skipped: {listed(gone)}"] if gone else []
