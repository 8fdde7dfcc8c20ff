"""Read the files that torchvision downloads for CIFAR and MNIST, in torchvision's row order, without its unpickling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.restricted_pickle import read_pickle

_CIFAR = {
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"], "labels"),
    "cifar100": ("cifar-100-python", ["train", "test"], "fine_labels"),
}
_MNIST = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw"}
_BYTES = 0x08
"""Code of unsigned bytes in the header of an IDX file."""


def read_torchvision(folder: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """Return all examples of dataset ``name``, the training split followed by the test split.

    Args:
        folder: the folder that torchvision calls ``root``.
        name: name of the dataset in this suite.

    Returns:
        Images (n, height, width, channels) and classes (n,); None if the folder has none of this dataset.

    Raises:
        DataError: if a file is missing or malformed.
    """
    if name in _CIFAR and (folder / _CIFAR[name][0]).is_dir():
        inside, files, labels = _CIFAR[name]
        batches = [_read_batch(folder / inside / file, labels) for file in files]
    elif name in _MNIST and (folder / _MNIST[name]).is_dir():
        inside = _MNIST[name]
        batches = [
            (_read_idx(folder / inside / f"{part}-images-idx3-ubyte")[..., None],
             _read_idx(folder / inside / f"{part}-labels-idx1-ubyte").astype(np.int64))
            for part in ("train", "t10k")
        ]  # fmt: skip
    else:
        return None
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _read_batch(path: Path, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read a pickled batch of CIFAR: rows of 3 × 32 × 32 bytes."""
    content: Any = read_pickle(path)
    try:
        images = np.asarray(content["data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, np.asarray(content[labels], np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no batch of CIFAR: {error}") from error


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes: two zeros, a type code, the number of dimensions, their sizes, the bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _BYTES]):
        raise DataError(f"{path} is no IDX file of bytes")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + int(np.prod(shape)):
        raise DataError(f"{path}: {len(content) - start} bytes; its header says {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
