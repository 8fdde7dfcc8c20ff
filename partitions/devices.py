"""Write a simulated client's data as a device's folder: ``train.parquet`` and ``test.parquet``."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.common.files import write_atomically
from florilegium.partitions.clientdata import decoded
from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset


def write_device(federation: Federation, dataset: Dataset, client: int, folder: Path) -> None:
    """Write the data of ``client`` to ``folder``, in the dataset's schema; a SuperNode can use it as ``data-path``.

    Raises:
        DataError: for data that are not images (copy a device's rows from the source files instead), and for images
            with noise.
    """
    spec = dataset.spec
    if spec.kind != "image":
        raise DataError(f"only image datasets can be written as device folders, not '{spec.name}'")
    if federation.noise is not None:
        raise DataError("partitioner: PNG files hold whole numbers of 0 to 255, but images with noise leave this range")
    for part in ("train", "test"):
        rows, labels = decoded(federation, dataset, client, part)
        images = []
        for pixels in rows:
            buffer = io.BytesIO()
            Image.fromarray(pixels.squeeze(-1) if spec.shape[0] == 1 else pixels).save(buffer, format="PNG")
            images.append({"bytes": buffer.getvalue(), "path": None})
        image_type = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        named = [spec.labels[label] for label in labels] if spec.labels else labels
        table = pyarrow.table({spec.x: pyarrow.array(images, type=image_type), spec.y: named})
        write_atomically(folder / f"{part}.parquet", partial(pyarrow.parquet.write_table, table))
