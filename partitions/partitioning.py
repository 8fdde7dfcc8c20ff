"""What a partitioner is made of: how it divides rows, its own configuration keys, and what it promises about rows.

A package that provides a partitioner imports :class:`Partitioning` from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from florilegium.common.references import imported
from florilegium.common.settings import NoHyper, Section

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner

    from florilegium.partitions.settings import FederationSettings
    from florilegium.partitions.shares import Rows
    from florilegium.partitions.spec import Dataset
    from florilegium.partitions.split_table import SplitTable

    Make = Callable[[FederationSettings, HubDataset, int], Partitioner]
    Columns = Callable[[FederationSettings, Dataset, Rows], Mapping[str, NDArray[Any]]]
    ReadSplit = Callable[[FederationSettings], SplitTable]
    Views = Callable[[FederationSettings], Mapping[str, Any]]


@dataclass(frozen=True)
class Partitioning:
    """A partitioner, as the configuration key ``partitioner`` names it.

    Functions and classes may be given as references ``package.module:attribute``, which are imported when used.

    Attributes:
        title: what it does, in a few words.
        make: function ``(settings, rows, seed)`` that returns a flwr-datasets ``Partitioner`` of ``num-clients``
            partitions. ``rows`` is a dataset with the columns ``row`` (number in the training split) and ``label``, and
            ``client`` for natural clients; partitions must keep ``row``. Every draw must come from ``seed``.
        keys: section of its own configuration keys; ``settings.own_keys(section)`` returns their values.
        columns: function ``(settings, dataset, rows)`` that returns further columns of ``rows``, each as long as these.
        split: for splits that are fixed as a whole, instead of ``make``: a function of the settings that returns which
            training and test rows each client holds.
        views: function ``(settings)`` that returns how clients see their images differently: values for the fields
            ``angles`` and ``noise`` of a ``Federation``.
        held_out: if above 0, it divides the rows of training and test split together, and this share of each client's
            rows, drawn at random and rounded up, is held out for testing.
        rows: "all" if every row that it receives must get exactly one owner, "some" if it may leave rows without owner,
            "shared" if, with ``samples-per-client``, several clients may also hold the same row.
        chooses_rows: with ``samples-per-client`` it receives all rows and chooses some, instead of
            ``num-clients`` × ``samples-per-client`` rows.
        natural: whether its clients are those that a column of the data names, or groups of these.
        numbers: whether it can divide datasets whose labels are numbers to predict (regression).
        files: names of its own keys that are paths of files. Relative paths become absolute at the command line, and
            the files' contents are part of the federation's identity.
        table: configuration table of its keys; "": its name or, if it is named by a reference, the attribute in lower
            case with "-" for "_".
    """

    title: str
    make: str | Make | None = None
    keys: str | type[Section] = NoHyper
    columns: str | Columns | None = None
    split: str | ReadSplit | None = None
    views: str | Views | None = None
    held_out: float = 0.0
    rows: Literal["all", "some", "shared"] = "some"
    chooses_rows: bool = False
    natural: bool = False
    numbers: bool = True
    files: tuple[str, ...] = ()
    table: str = ""

    def section(self) -> type[Section]:
        """Import and return the section of its own keys."""
        found: type[Section] = imported(self.keys)
        return found

    def seen(self, settings: FederationSettings) -> Mapping[str, Any]:
        """Return how clients see their images differently, as fields of a ``Federation``; empty if they do not."""
        return imported(self.views)(settings) if self.views else {}
