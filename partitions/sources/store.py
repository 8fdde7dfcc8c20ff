"""Decoded splits as ``.npy`` files in a folder: written once, memory-mapped by every process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import tomli_w
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.inputs import INPUTS
from florilegium.partitions.sources.parts import VALIDATION
from florilegium.partitions.sources.schema import FILE
from florilegium.partitions.spec import PARTS, DatasetSpec, Split
from florilegium.tasks.losses import IGNORED

NOTES = "notes.json"


def write_splits(splits: Mapping[str, Split], folder: Path) -> None:
    """Write the arrays of each split, "train" and perhaps "test", to the new ``folder``."""
    folder.mkdir()
    for part, split in splits.items():
        arrays = {"x": split.x, "y": split.y}
        if split.weights is not None:
            arrays["w"] = split.weights
        arrays |= {f"client-{quote(column, safe='')}": values for column, values in split.clients.items()}
        for key, array in arrays.items():
            np.save(folder / f"{part}-{key}.npy", array, allow_pickle=False)


def write_read(content: tuple[Mapping[str, Split], Sequence[str]], folder: Path) -> None:
    """Write splits to the new ``folder``, and what was said when they were read, a line each."""
    write_splits(content[0], folder)
    (folder / NOTES).write_text(json.dumps([*content[1]]), encoding="utf-8")


def notes_beside(folder: Path) -> tuple[str, ...]:
    """Return what was said when the splits in ``folder`` were read; nothing is known of earlier versions' reading."""
    file = folder / NOTES
    return tuple(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ()


def map_splits(folder: Path, spec: DatasetSpec) -> dict[str, Split]:
    """Return the splits in ``folder``, their inputs and client names memory-mapped.

    Raises:
        DataError: if a file is missing or damaged, or is not what ``spec`` describes.
    """
    found = {}
    try:
        for part in (*PARTS, VALIDATION):
            if part == "train" or (folder / f"{part}-y.npy").exists():
                clients = {
                    unquote(path.stem.removeprefix(f"{part}-client-")): np.load(path, mmap_mode="r")
                    for path in sorted(folder.glob(f"{part}-client-*.npy"))
                }
                x = np.load(folder / f"{part}-x.npy", mmap_mode="r")
                weights = np.load(folder / f"{part}-w.npy") if spec.weight else None
                found[part] = Split(x, np.load(folder / f"{part}-y.npy"), clients, weights)
                _check(folder, spec, part, found[part])
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds no readable arrays ({error}); delete the folder to have it made anew"
        ) from error
    return found


def _check(folder: Path, spec: DatasetSpec, part: str, split: Split) -> None:
    """Check that the arrays of a split are what its schema says.

    Raises:
        DataError: naming the file that differs, with what was found and what is expected.
    """
    kind = INPUTS[spec.kind]
    shape = kind.shape(spec)
    if split.x.dtype != kind.dtype or split.x.shape[1:] != shape:
        raise DataError(
            f"{folder / f'{part}-x.npy'}: found {split.x.dtype} {split.x.shape}, but '{spec.name}' needs "
            f"{np.dtype(kind.dtype)} (n, {', '.join(map(str, shape))})"
        )
    lengths = {"y": split.y.shape, **{f"client-{name}": names.shape for name, names in split.clients.items()}}
    for name, found in lengths.items():
        each = (spec.positions or ((1 + len(spec.further),) if spec.further else ())) if name == "y" else ()
        if found != (len(split.x), *each):
            raise DataError(
                f"{folder / f'{part}-{name}.npy'}: found shape {found} beside {len(split.x)} inputs; one a row"
            )
    if spec.targets.numbers:
        fits = split.y.dtype == np.float32 and bool(np.isfinite(split.y).all())
    else:
        y = split.y[split.y != IGNORED] if spec.positions else split.y
        most = spec.shape[0] if spec.responses else spec.classes - 1
        fits = y.dtype == np.int64 and 0 <= y.min(initial=0) <= y.max(initial=0) <= most
    if not fits:
        coded = f"int64 {'places' if spec.responses else 'classes'} 0 to {most}"
        wanted = "finite float32 targets" if spec.targets.numbers else coded
        raise DataError(f"{folder / f'{part}-y.npy'}: found {split.y.dtype}; expected {wanted}")


@dataclass(frozen=True)
class Imported:
    """A dataset that comes without a schema: content of its ``schema.toml``, decoded splits, and decisions taken."""

    schema: Mapping[str, Any]
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()


def write_dataset(dataset: Imported, folder: Path) -> None:
    """Write a dataset to the new ``folder``; its decisions are comments at the top of the schema."""
    write_splits(dataset.splits, folder)
    comments = "".join(f"# {' '.join(note.splitlines())}\n" for note in dataset.notes)
    (folder / FILE).write_text(comments + tomli_w.dumps(dict(dataset.schema)), encoding="utf-8")


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
