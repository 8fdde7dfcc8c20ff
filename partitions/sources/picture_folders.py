"""Convert images in folders ``<domain>/<class>/*.jpg``, such as DomainNet's, to a custom dataset with domains."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from florilegium.common.errors import DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.sources.picture_dataset import picture_dataset

SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_SHARE = 0.2
"""Share of the images of each domain and class that is held out for testing."""
DOMAIN = "domain"


def write_picture_folders(source: Path, target: Path, size: int) -> None:
    """Convert the image folders in ``source`` to ``train.parquet``, ``test.parquet`` and ``schema.toml`` in ``target``.

    Images are converted to RGB and resized to ``size`` × ``size``. Classes are the folder names found in any domain.
    Mean and deviation are computed over all domains' training images.

    Raises:
        DataError: if there are no such folders, or an image cannot be read.
    """
    found = [
        (domain.name, kind.name, sorted(file for file in kind.iterdir() if file.suffix.lower() in SUFFIXES))
        for domain in sorted(path for path in source.iterdir() if path.is_dir())
        for kind in sorted(path for path in domain.iterdir() if path.is_dir())
    ] if source.is_dir() else []  # fmt: skip
    if not any(files for _, _, files in found):
        raise DataError(f"{source} holds no pictures in folders <domain>/<class>/ ({', '.join(sorted(SUFFIXES))})")
    labels = sorted({kind for _, kind, _ in found})
    with picture_dataset(target, ("train", "test"), (3, size, size), labels, DOMAIN) as writer:
        for domain, kind, files in found:
            order = numpy_generator(0, "pictures", domain, kind).permutation(len(files))
            held = max(1, round(TEST_SHARE * len(files))) if len(files) > 1 else 0
            for part, numbers in (("test", order[:held]), ("train", order[held:])):
                pictures = [resized(files[number], (size, size)) for number in numbers]
                writer.add(part, pictures, [kind] * len(pictures), [domain] * len(pictures))


def pictures_in(folder: Path, *, deep: bool = False) -> list[Path]:
    """Return the image files in the subfolders of ``folder``, sorted; if ``deep``, those at any depth in ``folder``."""
    return sorted(file for file in folder.glob("**/*" if deep else "*/*") if file.suffix.lower() in SUFFIXES)


def resized(file: Path, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Read an image file and resize it to ``size`` = (width, height), in grey (mode "L") or colour ("RGB").

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        with Image.open(file) as image:
            picture = image.convert(mode)
            return picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
    except Exception as error:  # a damaged file can make Pillow raise any exception
        raise DataError(f"{file} is not a readable picture: {error}") from error
