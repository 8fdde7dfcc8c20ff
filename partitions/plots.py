"""Plot of a federation: the number of examples of each class that every client holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from datasets import Dataset as HubDataset
from datasets import disable_progress_bars
from flwr_datasets.partitioner import Partitioner
from flwr_datasets.visualization import plot_label_distributions
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.pyplot import close

from florilegium.common.files import write_atomically
from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset


class _AsPartitioner(Partitioner):
    """Adapter of a federation to flwr-datasets' plots: one partition per client, with a label column."""

    def __init__(self, federation: Federation, dataset: Dataset) -> None:
        super().__init__()
        self._federation = federation
        self.dataset = HubDataset.from_dict({"label": dataset.train.y})

    @property
    def num_partitions(self) -> int:
        return len(self._federation)

    def load_partition(self, partition_id: int) -> HubDataset:
        return self.dataset.select(self._federation.train[partition_id])


def plot_federation(federation: Federation, dataset: Dataset, path: Path, title: str) -> None:
    """Write a PNG heat map, clients × classes, of the numbers of training examples to ``path``."""
    figure = draw_federation(federation, dataset, title)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=130, bbox_inches="tight", format="png"))


def draw_federation(federation: Federation, dataset: Dataset, title: str) -> Figure:
    """Return a heat map, clients × classes, of the numbers of training examples."""
    disable_progress_bars()
    clients, classes = len(federation), dataset.spec.classes
    annotate = clients * classes <= 400
    figure, axes, _ = plot_label_distributions(
        _AsPartitioner(federation, dataset),
        label_name="label",
        plot_type="heatmap",
        size_unit="absolute",
        partition_id_axis="y",
        figsize=(float(np.clip(0.45 * classes + 2.5, 6, 16)), float(np.clip(0.28 * clients + 1.5, 4, 20))),
        title=title,
        cmap="YlGnBu",
        legend=True,
        legend_title="training examples",
        verbose_labels=False,
        plot_kwargs={"annot": annotate, "fmt": "d", "linewidths": 0.4 if annotate else 0},
    )
    axes.set(xlabel="class", ylabel="client")
    close(figure)  # or a notebook would show it twice
    FigureCanvasAgg(figure)
    return figure
