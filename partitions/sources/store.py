"""Decoded splits as ``.npy`` files in a folder: written once, memory-mapped by every process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import tomli_w
from numpy.typing import NDArray

from florilegium.common.errors import DataError, FileError
from florilegium.common.files import write_array
from florilegium.partitions.sources.schema import FILE
from florilegium.partitions.spec import DatasetSpec, Split

PARTS = ("train", "test")


def write_splits(folder: Path, splits: Mapping[str, Split]) -> None:
    """Write the arrays of each split, "train" and perhaps "test", to ``folder``."""
    for part, split in splits.items():
        arrays = {"x": split.x, "y": split.y}
        arrays |= {f"client-{quote(column, safe='')}": values for column, values in split.clients.items()}
        for key, array in arrays.items():
            write_array(folder / f"{part}-{key}.npy", array)


def map_splits(folder: Path) -> dict[str, Split]:
    """Return the splits in ``folder``, their inputs and client names memory-mapped.

    Raises:
        DataError: if a file is missing or damaged.
    """
    found = {}
    try:
        for part in PARTS:
            if part == "train" or (folder / f"{part}-y.npy").exists():
                clients = {
                    unquote(path.stem.removeprefix(f"{part}-client-")): np.load(path, mmap_mode="r")
                    for path in sorted(folder.glob(f"{part}-client-*.npy"))
                }
                x = np.load(folder / f"{part}-x.npy", mmap_mode="r")
                found[part] = Split(x, np.load(folder / f"{part}-y.npy"), clients)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds no readable arrays ({error}); delete the folder to have it made anew"
        ) from error
    return found


def stamps(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of each file, which change with the data."""
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def has_splits(folder: Path) -> bool:
    """Return whether ``folder`` holds decoded splits."""
    return (folder / "train-x.npy").exists()


def check_splits(folder: Path, spec: DatasetSpec, splits: Mapping[str, Split]) -> None:
    """Check that the arrays in ``folder`` are what its schema says.

    Raises:
        DataError: naming the file that differs, with what was found and what is expected.
    """
    channels_last = (*spec.shape[1:], spec.shape[0]) if spec.kind == "image" else spec.shape
    types: Mapping[str, type[np.generic]] = {"image": np.uint8, "characters": np.uint8, "tokens": np.int64}
    for part, split in splits.items():
        dtype = np.dtype(types.get(spec.kind, np.float32))
        if split.x.dtype != dtype or split.x.shape[1:] != channels_last:
            raise DataError(
                f"{folder / f'{part}-x.npy'}: found {split.x.dtype} {split.x.shape}, but schema.toml needs {dtype} "
                f"(n, {', '.join(map(str, channels_last))})"
            )
        lengths = {"y": split.y.shape, **{f"client-{name}": names.shape for name, names in split.clients.items()}}
        for name, shape in lengths.items():
            if shape != (len(split.x), *((1 + len(spec.further),) if spec.further and name == "y" else ())):
                raise DataError(
                    f"{folder / f'{part}-{name}.npy'}: found shape {shape} beside {len(split.x)} inputs; one a row"
                )
        if spec.targets.numbers:
            fits = split.y.dtype == np.float32 and bool(np.isfinite(split.y).all())
        else:
            fits = split.y.dtype == np.int64 and 0 <= split.y.min(initial=0) <= split.y.max(initial=0) < spec.classes
        if not fits:
            wanted = "finite float32 targets" if spec.targets.numbers else f"int64 classes 0 to {spec.classes - 1}"
            raise DataError(f"{folder / f'{part}-y.npy'}: found {split.y.dtype}; expected {wanted}, as in schema.toml")


def write_dataset(target: Path, schema: Mapping[str, Any], splits: Mapping[str, Split], notes: tuple[str, ...]) -> None:
    """Write a dataset of decoded arrays with its ``schema.toml``; ``notes`` are comments at the top of the schema.

    The folder appears complete or not at all. If another process has written it first, its copy is kept.

    Raises:
        FileError: if it cannot be written.
    """
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        write_splits(temporary, splits)
        comments = "".join(f"# {' '.join(note.splitlines())}\n" for note in notes)
        (temporary / FILE).write_text(comments + tomli_w.dumps(dict(schema)), encoding="utf-8")
        temporary.chmod(0o755)
        try:
            os.rename(temporary, target)
        except OSError:
            if not has_splits(target):
                raise
    except OSError as error:
        raise FileError(f"cache-dir: {target} cannot be written ({error.strerror}); name another folder") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def notes_of(folder: Path) -> list[str]:
    """Return the comments at the top of the ``schema.toml`` in ``folder``: how it was inferred, a line a decision."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("# ")), len(lines))
    return [line.removeprefix("# ") for line in lines[:end]]


def scales(pixels: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of images (n, h, w, c), in units of 0..1."""
    means, stds = [], []
    values = np.arange(256) / 255
    for channel in range(pixels.shape[-1]):
        counts = np.zeros(256)
        for start in range(0, len(pixels), 4096):  # bincount converts to int64: eight times the memory
            counts += np.bincount(pixels[start : start + 4096, ..., channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        variance = float(counts @ np.square(values - mean) / counts.sum())
        means.append(round(mean, 4))
        stds.append(round(max(variance, 1e-6) ** 0.5, 4))
    return means, stds
