"""Pictures as a person sees them: any file that Pillow reads, as 8-bit grey or colour pixels.

Grey values of 16 bits are scaled to 8, and floats from 0..1. A transparent picture lies on white. The orientation that
a camera notes is applied. Of several frames the first counts. Colour profiles are ignored.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from florilegium.common.errors import DataError

T = TypeVar("T")
Size = tuple[int, int]
"""Width and height."""
BACKGROUND = (255, 255, 255, 255)
"""White: what lies behind a transparent picture."""
UNREAD = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
"""Formats that Pillow recognises, but reads with other programs only, or not at all."""
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose pictures in 32-bit integers have 16 bits."""
_BITS, _PHOTOMETRIC = 258, 262
"""Tags of TIFF files: bits of a value, and whether the lowest is white (0)."""
_SHOWN = 3


def read_picture(source: object) -> Image.Image:
    """Return a picture, decoded, in mode "L" (grey) or "RGB" (colour).

    Args:
        source: the path of a file; its bytes; or the cell of a column of images, bytes or ``{"bytes", "path"}``.

    Raises:
        DataError: if it is none, is damaged, or has more pixels than Pillow's limit; the message says why, without the
            picture's name.
    """
    try:
        content = _content(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(content if isinstance(content, Path) else io.BytesIO(content)) as image:
                if image.format in UNREAD:
                    raise ValueError(f"pictures in the format {image.format} are not read")
                limit = Image.MAX_IMAGE_PIXELS or 0
                if limit and image.width * image.height > limit:
                    raise ValueError(f"it has {image.width}×{image.height} pixels, more than {limit}")
                return _seen(image)
    except UnidentifiedImageError as error:
        raise DataError("is not a readable picture: its content has no known format") from error
    except Exception as error:  # a damaged file can make Pillow raise any exception
        raise DataError(f"is not a readable picture: {error or type(error).__name__}") from error


def each_picture(sources: Iterable[tuple[str, object]], use: Callable[[Image.Image], T], where: str = "") -> list[T]:
    """Read pictures and return what ``use`` makes of each.

    Args:
        sources: name for messages and source of each picture.
        use: function of a picture; it raises :class:`DataError`, without the picture's name, if it does not fit.
        where: begins error messages.

    Raises:
        DataError: if pictures cannot be read or used, with the first of them, the reason, and how many there are.
    """
    made, failed, count = [], [], 0
    for name, source in sources:
        count += 1
        try:
            made.append(use(read_picture(source)))
        except DataError as error:
            failed.append((name, error))
    if failed:
        (first, reason), others = failed[0], [name for name, _ in failed[1 : 1 + _SHOWN]]
        more = f" ({len(failed)} of {count} pictures cannot be used; also {', '.join(others)}" if others else ""
        more += ", …)" if len(failed) > 1 + _SHOWN else ")" if others else ""
        raise DataError(f"{where}{first} {reason}{more}") from reason
    return made


def read_pictures(
    sources: Iterable[tuple[str, object]], count: int, shape: tuple[int, ...], *, needs: str = "", where: str = ""
) -> NDArray[np.uint8]:
    """Return ``count`` pictures as an array (count, height, width, channels).

    Args:
        sources: name for messages and source of each picture.
        count: their number.
        shape: channels (1 or 3), height and width. Pictures of another size are resized, unless ``needs`` is given.
        needs: name of a dataset whose size the pictures must have.
        where: begins error messages.

    Raises:
        DataError: as :func:`each_picture`.
    """
    channels, height, width = shape
    array = np.empty((count, height, width, channels), np.uint8)
    rows = iter(array)

    def keep(picture: Image.Image) -> None:
        if needs and picture.size != (width, height):
            raise DataError(f"has {picture.height}×{picture.width} pixels, '{needs}' needs {height}×{width}")
        next(rows)[:] = pixels(picture, channels, (width, height))

    each_picture(sources, keep, where)
    return array


def pixels(picture: Image.Image, channels: int, size: Size) -> NDArray[np.uint8]:
    """Return a picture as an array (height, width, ``channels``), converted to grey or colour and resized."""
    return np.asarray(resized(picture.convert("L" if channels == 1 else "RGB"), size)).reshape(*size[::-1], channels)


def resized(picture: Image.Image, size: Size) -> Image.Image:
    """Return a picture in another size; the picture itself if it has this size."""
    return picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)


def _content(source: object) -> bytes | Path:
    path: object = source if isinstance(source, str) else None
    if isinstance(source, Mapping):
        path, source = source.get("path"), source.get("bytes")
    if isinstance(source, Path) or (isinstance(source, bytes) and source):
        return source
    if path:
        raise ValueError(f"it names a file, '{path}', and holds no picture; write the file's bytes into the cell")
    if source is None or source == b"":
        raise ValueError("the cell is empty")
    raise ValueError(f"the cell holds {type(source).__name__}; expected the bytes of a picture's file")


def _seen(image: Image.Image) -> Image.Image:
    image.load()
    picture = ImageOps.exif_transpose(image)
    if picture.mode.startswith("I") or picture.mode == "F":
        return Image.fromarray(_eight_bits(picture, image))
    grey = picture.mode in ("1", "L", "LA", "La")
    if picture.has_transparency_data:
        if picture.mode == "La":
            picture = picture.convert("LA")
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, BACKGROUND), picture)
    return picture.convert("L" if grey else "RGB")


def _eight_bits(picture: Image.Image, image: Image.Image) -> NDArray[np.uint8]:
    """Return grey values of more than 8 bits as 8 bits, 0 for black; ``image`` is the picture as it was opened."""
    values = np.asarray(picture)
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if picture.mode == "F":
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            found = f"{values.min():g} to {values.max():g}"
            raise ValueError(f"its floats are not all in 0..1 (found: {found}); scale them, or save 8 or 16 bits")
        grey = np.rint(values * 255).astype(np.uint8)
    elif picture.mode == "I" and image.format not in _SIXTEEN_BITS:
        raise ValueError("its range is not known, as it has 32-bit integers; save it with 8 or 16 bits")
    else:
        grey = (values >> (int(tags.get(_BITS, (16,))[0]) - 8)).clip(0, 255).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:
        grey = 255 - grey
    if isinstance(transparent := image.info.get("transparency"), int):
        grey[values == transparent] = BACKGROUND[0]
    return grey
