"""Pictures in folders ``<domain>/<class>/*.jpg``, as DomainNet has, become a dataset of one's own, with domains."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from PIL import Image

from common.errors import DataError
from common.files import write_atomically, write_text
from common.seeds import numpy_generator

SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_SHARE = 0.2
"""Share of every domain's pictures of a class that is for tests."""
DOMAIN, LABEL, IMAGE = "domain", "label", "image"


def write_picture_folders(source: Path, target: Path, size: int) -> None:
    """Write ``train.parquet``, ``test.parquet`` and ``schema.toml`` to ``target``.

    Pictures are turned to RGB and resized to ``size`` × ``size``. Classes are the folders found in any domain.

    Raises:
        DataError: if there are no such folders, or a picture cannot be read.
    """
    found = [
        (domain.name, kind.name, sorted(file for file in kind.iterdir() if file.suffix.lower() in SUFFIXES))
        for domain in sorted(path for path in source.iterdir() if path.is_dir())
        for kind in sorted(path for path in domain.iterdir() if path.is_dir())
    ] if source.is_dir() else []  # fmt: skip
    if not any(files for _, _, files in found):
        raise DataError(f"{source} holds no pictures in folders <domain>/<class>/ ({', '.join(sorted(SUFFIXES))})")
    rows: dict[str, list[tuple[bytes, str, str]]] = {"train": [], "test": []}
    moments = []
    for domain, kind, files in found:
        order = numpy_generator(0, "pictures", domain, kind).permutation(len(files))
        held = round(TEST_SHARE * len(files))
        for position, number in enumerate(order):
            data, pixels = _resized(files[number], size)
            part = "test" if position < held else "train"
            rows[part].append((data, kind, domain))
            if part == "train":
                moments.append([pixels.mean(axis=(0, 1)), np.square(pixels).mean(axis=(0, 1))])
    mean, square = np.mean(moments, axis=0)
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
    target.mkdir(parents=True, exist_ok=True)
    for part, cells in rows.items():
        table = pa.table({
            IMAGE: pa.array([{"bytes": data, "path": None} for data, _, _ in cells],
                            pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            LABEL: [kind for _, kind, _ in cells],
            DOMAIN: [domain for _, _, domain in cells],
        })  # fmt: skip
        write_atomically(target / f"{part}.parquet", partial(pq.write_table, table))
    schema = {
        "label": LABEL,
        "labels": sorted({kind for _, kind, _ in found}),
        "clients": [DOMAIN],
        "pictures": {
            "column": IMAGE,
            "shape": [3, size, size],
            "mean": [round(float(v), 4) for v in mean],
            "std": [round(float(v), 4) for v in std],
        },
    }
    write_text(target / "schema.toml", tomli_w.dumps(schema))


def _resized(file: Path, size: int) -> tuple[bytes, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Return a picture as PNG bytes and as pixels (size, size, 3) in units of 0..1."""
    try:
        with Image.open(file) as image:
            small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except OSError as error:
        raise DataError(f"{file} is not a readable picture: {error}") from error
    data = io.BytesIO()
    small.save(data, format="png")
    return data.getvalue(), np.asarray(small, np.float64) / 255
