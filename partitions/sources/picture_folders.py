"""Convert images in folders ``<domain>/<class>/*.jpg``, such as DomainNet's, to a custom dataset with domains."""

from __future__ import annotations

import logging
from pathlib import Path

from florilegium.common.errors import DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.sources.picture_dataset import picture_dataset
from florilegium.partitions.sources.picture_files import folders_in, pictures_in
from florilegium.partitions.sources.pictures import each_picture, resized

log = logging.getLogger("flwr")

TEST_SHARE = 0.2
"""Share of the images of each domain and class that is held out for testing."""
DOMAIN = "domain"


def write_picture_folders(source: Path, target: Path, size: int) -> None:
    """Convert the image folders in ``source`` to ``train.parquet``, ``test.parquet`` and ``schema.toml`` in ``target``.

    Images are converted to RGB and resized to ``size`` × ``size``. Classes are the names of the folders, in any domain,
    that hold pictures. Mean and deviation are computed over all domains' training images. A log line says what was
    skipped in a domain.

    Raises:
        DataError: if there are no such folders, or an image cannot be read.
    """
    found = {domain: pictures_in(domain) for domain in folders_in(source)}
    labels = sorted({label for pictures in found.values() for label in pictures.labels})
    if not labels:
        raise DataError(f"{source} holds no pictures in folders <domain>/<class>/")
    with picture_dataset(target, ("train", "test"), (3, size, size), labels, DOMAIN) as writer:
        for domain, pictures in found.items():
            for note in pictures.notes():
                log.warning("%s: %s", domain, note)
            for kind in labels:
                files = [file for file, label in zip(pictures.files, pictures.labels, strict=True) if label == kind]
                order = numpy_generator(0, "pictures", domain.name, kind).permutation(len(files))
                held = max(1, round(TEST_SHARE * len(files))) if len(files) > 1 else 0
                for part, numbers in (("test", order[:held]), ("train", order[held:])):
                    chosen = ((str(files[number]), files[number]) for number in numbers)
                    read = each_picture(chosen, lambda picture: resized(picture.convert("RGB"), (size, size)))
                    writer.add(part, read, [kind] * len(read), [domain.name] * len(read))
