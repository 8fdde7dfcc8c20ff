"""One client's examples as tensors: from a simulated federation, or from a device's own folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import DataError
from common.seeds import numpy_generator
from partitions.datasets import Dataset, DatasetSpec, Split
from partitions.federation import HELD_BACK, Federation, client_rows


@dataclass(frozen=True)
class ClientData:
    """The examples of one client.

    Attributes:
        x_train, x_test: inputs (n, *shape): normalised float32 images in channels-last layout, float32 features, or
            int64 character codes.
        y_train, y_test: int64 classes (n,).
        labeled: whether training may use ``y_train``.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    labeled: bool

    def to(self, device: torch.device) -> ClientData:
        """Return the same data on ``device``."""
        tensors = (tensor.to(device) for tensor in (self.x_train, self.y_train, self.x_test, self.y_test))
        return ClientData(*tensors, labeled=self.labeled)


def to_inputs(spec: DatasetSpec, x: NDArray[np.generic]) -> Tensor:
    """Turn decoded rows into network inputs: normalise images per channel, widen character codes to int64."""
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    match spec.kind:
        case "image":
            scale = 1 / (255 * torch.tensor(spec.std))
            shift = torch.tensor(spec.mean) / torch.tensor(spec.std)
            # Rows are stored (n, height, width, channels): permuted, that is the channels-last layout already.
            return (tensor * scale - shift).permute(0, 3, 1, 2)
        case "characters":
            return tensor.long()
        case "table":
            return tensor


def simulated(federation: Federation, dataset: Dataset, client: int) -> ClientData:
    """Return the data of ``client`` (0..n-1) in a simulated federation."""
    tensors: list[Tensor] = []
    for split, rows in client_rows(federation, dataset, client).values():
        x = to_inputs(dataset.spec, split.x[rows])
        if federation.angles[client]:
            from partitions.rotation import rotate_images

            x = rotate_images(x, float(federation.angles[client]))
        tensors += [x, torch.from_numpy(split.y[rows])]
    return ClientData(*tensors, labeled=bool(federation.labeled[client]))


def from_folder(path: Path, spec: DatasetSpec) -> ClientData:
    """Return the data of a device: ``train.parquet`` and, where it has one, ``test.parquet``, in ``spec``'s schema.

    Without a test file, a fifth of the rows is held back for evaluation.

    Raises:
        DataError: if the folder has no usable ``train.parquet``, or a row does not fit the schema.
    """
    from partitions.decode import decode, read_parquet

    if not (path / "train.parquet").is_file():
        found = ", ".join(sorted(entry.name for entry in path.iterdir())) if path.is_dir() else "no such folder"
        raise DataError(f"data-path: {path} holds no train.parquet (found: {found or 'nothing'})")

    def read(name: str) -> Split:
        return decode(spec, read_parquet(path / name), str(path / name))

    train = read("train.parquet")
    if (path / "test.parquet").is_file():
        test, train_rows, test_rows = read("test.parquet"), np.arange(len(train)), None
    else:
        order = numpy_generator(0, "device", "hold-back").permutation(len(train))
        held = round(len(train) * HELD_BACK)
        test, train_rows, test_rows = train, np.sort(order[held:]), np.sort(order[:held])
    test_rows = np.arange(len(test)) if test_rows is None else test_rows
    return ClientData(
        to_inputs(spec, train.x[train_rows]),
        torch.from_numpy(train.y[train_rows]),
        to_inputs(spec, test.x[test_rows]),
        torch.from_numpy(test.y[test_rows]),
        labeled=True,
    )
