"""Pictures in folders ``<domain>/<class>/*.jpg``, as DomainNet has, become a dataset of one's own, with domains."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from florilegium.common.errors import DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.sources.picture_dataset import picture_dataset

SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_SHARE = 0.2
"""Share of every domain's pictures of a class that is for tests."""
DOMAIN = "domain"


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
    labels = sorted({kind for _, kind, _ in found})
    with picture_dataset(target, ("train", "test"), (3, size, size), labels, DOMAIN) as writer:
        for domain, kind, files in found:
            order = numpy_generator(0, "pictures", domain, kind).permutation(len(files))
            held = max(1, round(TEST_SHARE * len(files))) if len(files) > 1 else 0
            for part, numbers in (("test", order[:held]), ("train", order[held:])):
                pictures = [resized(files[number], (size, size)) for number in numbers]
                writer.add(part, pictures, [kind] * len(pictures), [domain] * len(pictures))


def pictures_in(folder: Path, *, deep: bool = False) -> list[Path]:
    """Return the pictures in the folders of ``folder``, in order; ``deep``: in all of it, and in itself."""
    return sorted(file for file in folder.glob("**/*" if deep else "*/*") if file.suffix.lower() in SUFFIXES)


def resized(file: Path, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Return a picture in ``size`` = (width, height), grey ("L") or in colours ("RGB").

    Raises:
        DataError: if it cannot be read.
    """
    try:
        with Image.open(file) as image:
            picture = image.convert(mode)
            return picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow raises whatever a damaged file makes it stumble over
        raise DataError(f"{file} is not a readable picture: {error}") from error
