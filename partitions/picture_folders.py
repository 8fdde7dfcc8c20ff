"""Pictures in folders ``<domain>/<class>/*.jpg``, as DomainNet has, become a dataset of one's own, with domains."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from PIL import Image

from common.errors import DataError
from common.files import write_text
from common.seeds import numpy_generator

SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_SHARE = 0.2
"""Share of every domain's pictures of a class that is for tests."""
DOMAIN, LABEL, IMAGE = "domain", "label", "image"
SCHEMA = pa.schema(
    [
        (IMAGE, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        (LABEL, pa.string()),
        (DOMAIN, pa.string()),
    ]
)


def write_picture_folders(source: Path, target: Path, size: int) -> None:
    """Write ``train.parquet``, ``test.parquet`` and ``schema.toml`` to ``target``.

    Pictures are turned to RGB and resized to ``size`` × ``size``. Classes are the folders found in any domain; mean and
    deviation are those of all domains' training pictures.

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
    target.mkdir(parents=True, exist_ok=True)
    kept = {part: target / f".{part}.parquet" for part in ("train", "test")}
    moments = []
    with ExitStack() as files_open:
        writers = {part: files_open.enter_context(pq.ParquetWriter(path, SCHEMA)) for part, path in kept.items()}
        for domain, kind, files in found:
            order = numpy_generator(0, "pictures", domain, kind).permutation(len(files))
            held = max(1, round(TEST_SHARE * len(files))) if len(files) > 1 else 0
            for part, numbers in (("test", order[:held]), ("train", order[held:])):
                pictures = [_resized(files[number], size) for number in numbers]
                cells = [{"bytes": data, "path": None} for data, _ in pictures]
                columns = [cells, [kind] * len(cells), [domain] * len(cells)]
                writers[part].write_table(pa.table(columns, schema=SCHEMA))
                if part == "train":
                    moments += [[p.mean(axis=(0, 1)), np.square(p).mean(axis=(0, 1))] for _, p in pictures]
    for part, path in kept.items():
        path.replace(target / f"{part}.parquet")
    mean, square = np.mean(moments, axis=0)
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
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
    except Exception as error:  # Pillow raises whatever a damaged file makes it stumble over
        raise DataError(f"{file} is not a readable picture: {error}") from error
    data = io.BytesIO()
    small.save(data, format="png")
    return data.getvalue(), np.asarray(small, np.float64) / 255
