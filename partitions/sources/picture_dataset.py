"""Write a custom dataset of images: parquet files, and the ``schema.toml`` that describes them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from numpy.typing import NDArray
from PIL import Image

from florilegium.common.files import write_text

IMAGE, LABEL = "image", "label"


class PictureWriter:
    """Writes images, all of one size, to parquet files, and measures mean and deviation of their channels.

    Args:
        writers: the open parquet file of each part, "train" and perhaps "test".
        client: the column that names domains or clients.
    """

    def __init__(self, writers: dict[str, pq.ParquetWriter], client: str) -> None:
        self._writers = writers
        self._client = client
        self._sums: list[NDArray[np.float64]] = []

    def add(self, part: str, pictures: Sequence[Image.Image], labels: Sequence[str], clients: Sequence[str]) -> None:
        """Append images to ``part``, with their labels and the names of their domains or clients."""
        columns = [[{"bytes": _png(picture), "path": None} for picture in pictures], list(labels), list(clients)]
        self._writers[part].write_table(pa.table(columns, schema=_schema(self._client)))
        if part == "train":
            for picture in pictures:
                pixels = np.asarray(picture, np.float64).reshape(-1, len(picture.getbands())) / 255
                self._sums.append(np.stack([pixels.mean(axis=0), np.square(pixels).mean(axis=0)]))

    def scales(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of the training images' channels, in units of 0..1."""
        mean, square = np.mean(self._sums, axis=0)
        std = np.sqrt(np.maximum(square - mean**2, 1e-6))
        return [round(float(v), 4) for v in mean], [round(float(v), 4) for v in std]


@contextmanager
def picture_dataset(
    target: Path, parts: Sequence[str], shape: tuple[int, int, int], labels: Sequence[str], client: str
) -> Iterator[PictureWriter]:
    """Write an image dataset to ``target``: the context accepts images, and at its end the files are complete.

    The files are one parquet file per part and ``schema.toml``. They replace those of an earlier dataset, including
    its test file. After an error within the context, the earlier dataset is unchanged.

    Args:
        target: the dataset's folder.
        parts: "train", or "train" and "test".
        shape: channels, height and width of an image.
        labels: the classes, in order.
        client: the column that names domains or clients.
    """
    target.mkdir(parents=True, exist_ok=True)
    unfinished = {part: target / f".{part}.parquet" for part in parts}
    try:
        with ExitStack() as files:
            writers = {
                part: files.enter_context(pq.ParquetWriter(path, _schema(client))) for part, path in unfinished.items()
            }
            writer = PictureWriter(writers, client)
            yield writer
        mean, std = writer.scales()
    except BaseException:
        for path in unfinished.values():
            path.unlink(missing_ok=True)
        raise
    for part in ("train", "test"):
        (target / f"{part}.parquet").unlink(missing_ok=True)
        if part in unfinished:
            unfinished[part].replace(target / f"{part}.parquet")
    pictures = {"column": IMAGE, "shape": list(shape), "mean": mean, "std": std}
    schema = {"label": LABEL, "labels": list(labels), "clients": [client], "pictures": pictures}
    write_text(target / "schema.toml", tomli_w.dumps(schema))


def _schema(client: str) -> pa.Schema:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.schema([(IMAGE, image), (LABEL, pa.string()), (client, pa.string())])


def _png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, format="png")
    return data.getvalue()
