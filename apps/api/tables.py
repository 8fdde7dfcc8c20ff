"""Tables of what there is: methods, datasets, configuration keys, and the clients of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from florilegium.apps.api.keywords import read_keywords
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from florilegium.partitions.shares import Federation
    from florilegium.partitions.spec import Dataset


class Partition:
    """The clients of a federation and their examples.

    Args:
        federation, dataset: which rows each client holds, and of what.
        title: title of the picture.
    """

    def __init__(self, federation: Federation, dataset: Dataset, title: str) -> None:
        self._federation, self._dataset, self._title = federation, dataset, title

    def __repr__(self) -> str:
        return f"<florilegium partition {self._title}: {len(self._federation)} clients>"

    @property
    def counts(self) -> pd.DataFrame:
        """Numbers of training examples: a row per client, a column per class."""
        names = [*self._dataset.spec.learned.strata_names] or ["examples"]
        counts = self._federation.class_counts(self._dataset)
        return pd.DataFrame(counts, index=self.clients.index, columns=pd.Index(names, name="class"))

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client: its name in the data, group, numbers of training and test examples."""
        f = self._federation
        groups = ["unseen" if unseen else "seen" if labeled else "unlabeled"
                  for unseen, labeled in zip(f.unseen, f.labeled, strict=True)]  # fmt: skip
        columns = {"name": f.names, "group": groups, "train": f.train.sizes, "test": f.test.sizes}
        return pd.DataFrame(columns, index=pd.RangeIndex(len(f), name="client"))

    def plot(self) -> Figure:
        """Return a heat map, clients × classes, of the numbers of training examples."""
        from florilegium.partitions.plots import draw_federation

        return draw_federation(self._federation, self._dataset, self._title)

    def write_devices(self, folder: str | Path) -> list[Path]:
        """Write each client's data as a device's folder, as ``florilegium partition --devices`` does.

        Args:
            folder: the folder to write ``<client>/train.parquet`` and ``<client>/test.parquet`` to.

        Returns:
            The clients' folders, each of which a SuperNode can use as ``data-path``.

        Raises:
            DataError: for data that are not images.
        """
        from florilegium.partitions.devices import write_device

        targets = [Path(folder) / str(client) for client in self.clients.index]
        for client, target in enumerate(targets):
            write_device(self._federation, self._dataset, client, target)
        return targets

    def _repr_html_(self) -> str:
        return str(self.clients.join(self.counts).to_html())


def partition(recipe: str | Path | None = None, **keys: Any) -> Partition:
    """Return the clients of a federation, without a run.

    Args:
        recipe, keys: as for :func:`florilegium.run`.

    Raises:
        ConfigurationError, DataError: if the keys are wrong, or the data do not suffice.
    """
    from florilegium.partitions.federation import federate

    settings, _ = parse(complete(resolve(recipe, [], read_keywords(keys))))
    federation, dataset = federate(settings)
    return Partition(federation, dataset, f"{dataset.spec.name}: {settings.partitioner}, seed {settings.seed}")


def methods() -> pd.DataFrame:
    """Return a table of all methods: name, title, source, and the package that each comes from."""
    from florilegium.apps.methods.registry import METHODS

    rows = []
    for name in METHODS:
        try:
            method = METHODS[name]
        except ConfigurationError as error:  # a package that is broken must not hide the others
            rows.append((name, str(error), "", METHODS.origin(name)))
            continue
        rows.append((name, method.title, method.source, METHODS.origin(name)))
    return pd.DataFrame(rows, columns=["method", "title", "source", "package"]).set_index("method")


def datasets() -> pd.DataFrame:
    """Return a table of all datasets: name, kind, shape of an input, classes, hub id, package."""
    from florilegium.partitions.datasets import DATASETS
    from florilegium.partitions.spec import DatasetSpec

    rows: list[tuple[object, ...]] = []
    for name in DATASETS:
        spec = None if DATASETS.problem(name) else DATASETS[name]
        if isinstance(spec, DatasetSpec):
            shape, names = "×".join(map(str, spec.shape)), ", ".join(spec.client_columns)
            rows.append((name, spec.kind, shape, spec.classes, spec.hub, names, DATASETS.origin(name)))
        else:  # a function, which describes its data when it is called; or a package that is broken
            rows.append((name, "", "", None, "", DATASETS.problem(name), DATASETS.origin(name)))
    columns = ["dataset", "kind", "input", "classes", "hub", "natural clients", "package"]
    return pd.DataFrame(rows, columns=columns).set_index("dataset")


def keys(word: str = "") -> pd.DataFrame:
    """Return a table of the configuration keys: values, default, meaning.

    Args:
        word: list only keys that contain this, such as a method's name.
    """
    from florilegium.apps.settings.configuration import sections
    from florilegium.apps.settings.keys import groups, installed_sections

    rows = [
        (key.name, key.values.replace("\\|", "|"), key.default, key.meaning)
        for group in groups(sections() | installed_sections())
        for key in group.keys
        if word in key.name
    ]
    return pd.DataFrame(rows, columns=["key", "values", "default", "meaning"]).set_index("key")
