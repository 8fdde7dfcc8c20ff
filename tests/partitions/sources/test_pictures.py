"""Pictures are what a person sees: every mode and format, against values written down here; damaged ones by name."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image, TiffImagePlugin

from florilegium.common.errors import DataError
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.describing import decisions
from florilegium.partitions.device_data import read_device, report
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.sources.picture_files import pictures_in, suffixes
from florilegium.partitions.sources.picture_folders import write_picture_folders
from florilegium.partitions.sources.pictures import read_picture
from tests.partitions.made import decode_image
from tests.support import CACHE

RAMP = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
GREY = (RAMP >> 8).astype(np.uint8)
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)


def _file(picture: Image.Image, suffix: str = "png", **options: Any) -> bytes:
    data = io.BytesIO()
    picture.save(data, format=suffix, **options)
    return data.getvalue()


def _tiff(values: np.ndarray, **tags: int) -> bytes:
    info = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in tags.items():
        info[int(tag.removeprefix("t"))] = value
    return _file(Image.fromarray(values), "tiff", tiffinfo=info)


def _png16(channels: np.ndarray) -> bytes:
    """Write a PNG with 16 bits per channel by hand: Pillow writes those of grey pictures only."""
    import struct
    import zlib

    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in channels)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", channels.shape[1], channels.shape[0], 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _on_white(values: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return values * (alpha / 255) + 255 * (1 - alpha / 255)


NOISE = Image.fromarray(np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8))


def _palette() -> Image.Image:
    picture = Image.fromarray(np.eye(8, dtype=np.uint8))
    picture.putpalette([10, 20, 30, 200, 0, 0])
    return picture


ALPHA = np.tile(np.array([0, 64, 128, 255], np.uint8), (8, 2))
DEEP = np.stack([RAMP, RAMP[::-1], RAMP.T], axis=2)
OPAQUE = np.full((8, 8), 65535, np.uint16)
GREYS: dict[str, tuple[Callable[[], bytes], np.ndarray]] = {
    "8 bits": (lambda: _file(Image.fromarray(GREY)), GREY),
    "1 bit": (lambda: _file(Image.fromarray(GREY > 99)), 255 * (GREY > 99)),
    "16-bit PNG": (lambda: _file(Image.fromarray(RAMP)), GREY),
    "16-bit PGM": (lambda: b"P5 8 8 65535\n" + RAMP.astype(">u2").tobytes(), GREY),
    "12-bit PGM": (lambda: b"P5 8 8 4095\n" + (RAMP >> 4).astype(">u2").tobytes(), GREY),
    "16-bit TIFF": (lambda: _tiff(RAMP), GREY),
    "16-bit TIFF, white is zero": (lambda: _tiff(RAMP, t262=0), 255 - GREY),
    "8-bit TIFF, white is zero": (lambda: _tiff(GREY, t262=0), GREY),
    "16-bit PNG, one value transparent": (
        lambda: _file(Image.fromarray(RAMP), transparency=int(RAMP[2, 3])), np.where(RAMP[2, 3] == RAMP, 255, GREY)
    ),
    "float TIFF": (lambda: _tiff((GREY / 255).astype(np.float32)), GREY),
    "grey and alpha": (
        lambda: _file(Image.fromarray(np.stack([GREY, ALPHA], axis=2), "LA")), _on_white(GREY, ALPHA)
    ),
    "one grey transparent": (
        lambda: _file(Image.fromarray(GREY), transparency=int(GREY[4, 4])), np.where(GREY[4, 4] == GREY, 255, GREY)
    ),
}  # fmt: skip
COLOURS: dict[str, tuple[Callable[[], bytes], np.ndarray]] = {
    "8 bits": (lambda: _file(Image.fromarray(COLOUR)), COLOUR),
    "16-bit RGB": (lambda: _png16(DEEP), (DEEP >> 8)),
    "16-bit RGBA": (lambda: _png16(np.dstack([DEEP, np.zeros_like(RAMP)])), np.full((8, 8, 3), 255)),
    "RGBA": (
        lambda: _file(Image.fromarray(np.dstack([COLOUR, ALPHA]))), _on_white(COLOUR, ALPHA[..., None])
    ),
    "WebP with alpha": (
        lambda: _file(Image.fromarray(np.dstack([COLOUR, ALPHA])), "webp", lossless=True, exact=True),
        _on_white(COLOUR, ALPHA[..., None]),
    ),
    "palette": (lambda: _file(Image.fromarray(COLOUR).quantize(64)), COLOUR),
    "palette, one colour transparent": (
        lambda: _file(_palette(), transparency=1), np.where(np.eye(8)[..., None] > 0, 255, (10, 20, 30))
    ),
    "16-bit grey and alpha": (lambda: _png16(np.stack([RAMP, OPAQUE], axis=2)), np.stack([GREY] * 3, axis=2)),
    "CMYK": (
        lambda: _file(Image.fromarray(np.dstack([255 - COLOUR, np.zeros_like(GREY)]), "CMYK"), "tiff"), COLOUR
    ),
    "animated GIF": (
        lambda: _file(Image.new("RGB", (8, 8), (200, 0, 0)), "gif", save_all=True,
                      append_images=[Image.new("RGB", (8, 8), (0, 0, 200))]),
        np.full((8, 8, 3), (200, 0, 0)),
    ),
    "animated WebP": (
        lambda: _file(Image.new("RGB", (8, 8), (200, 0, 0)), "webp", save_all=True, lossless=True,
                      append_images=[Image.new("RGB", (8, 8), (0, 0, 200))]),
        np.full((8, 8, 3), (200, 0, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GREYS)
def test_grey_pictures(name: str) -> None:
    data, expected = GREYS[name][0](), GREYS[name][1]
    assert read_picture(data).mode == "L"
    for channels in (1, 3):
        found = decode_image(data, channels)
        assert found.shape == (8, 8, channels)
        assert np.abs(found - expected[..., None].astype(float)).max() <= 1
    assert len(np.unique(found)) >= 0.7 * len(np.unique(np.rint(expected)))


@pytest.mark.parametrize("name", COLOURS)
def test_colour_pictures(name: str) -> None:
    data, expected = COLOURS[name][0](), COLOURS[name][1]
    assert read_picture(data).mode == "RGB"
    assert np.abs(decode_image(data, 3) - np.asarray(expected, float)).max() <= 1
    luminance = np.asarray(expected, float) @ [0.299, 0.587, 0.114]
    assert np.abs(decode_image(data, 1)[..., 0] - luminance).max() <= 2


@pytest.mark.parametrize("suffix", ["jpeg", "png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_camera_is_applied(suffix: str, orientation: int) -> None:
    """As in the EXIF standard: where row 0 and column 0 of the stored picture are in what a person sees."""
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 255  # a white corner, at the top left
    upright[8:, 16:] = 120  # a grey one, at the bottom right
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.transpose(1, 0, 2), 6: np.rot90(upright), 7: np.rot90(upright.transpose(1, 0, 2), 2),
        8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = _file(Image.fromarray(np.ascontiguousarray(stored)), suffix, exif=exif)
    found = decode_image(data, 3)
    assert found.shape == (16, 32, 3)
    assert np.abs(found.astype(int) - upright).max() <= (60 if suffix in ("jpeg", "webp") else 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: _file(NOISE)[:900], "truncated"),
        (lambda: _file(NOISE, "jpeg")[:2000], "truncated"),
        (lambda: b"no picture", "its content has no known format"),
        (lambda: b"", "the cell is empty"),
        (lambda: None, "the cell is empty"),
        (lambda: {"bytes": None, "path": None}, "the cell is empty"),
        (lambda: {"bytes": None, "path": "x.png"}, "it names a file, 'x.png', and holds no picture; write the file's"),
        (lambda: "x.png", "it names a file, 'x.png', and holds no picture"),
        (lambda: 7, "the cell holds int; expected the bytes"),
        (lambda: [1, 2], "the cell holds list"),
        (lambda: _file(Image.new("1", (20_000, 20_000))), r"exceeds limit|20000×20000 pixels"),
        (lambda: _file(Image.new("1", (10_000, 10_000))), "it has 10000×10000 pixels, more than 89478485"),
        (lambda: _tiff(GREY.astype(np.float32)), r"its floats are not all in 0\.\.1 .found: 0 to 255"),
        (lambda: _tiff(np.full((2, 2), np.nan, np.float32)), r"its floats are not all in 0\.\.1"),
        (lambda: _tiff(GREY.astype(np.int32)), "its range is not known, as it has 32-bit integers"),
        (lambda: _file(Image.new("RGB", (4, 4)), "eps"), "pictures in the format EPS are not read"),
        (lambda: Path("/nowhere/a.png"), "No such file"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_refused_in_words(make: Callable[[], object], said: str) -> None:
    with pytest.raises(DataError, match=f"is not a readable picture: .*({said})") as caught:
        read_picture(make())
    assert "0x" not in str(caught.value)  # no address of a Python object


def _png(shade: int = 0) -> bytes:
    return _file(Image.new("L", (28, 28), shade))


def test_all_forms_of_cells_are_read() -> None:
    spec, struct = DATASETS["mnist"], {"bytes": _png(7), "path": "a.png"}
    for cells, kind in (
        ([_png(7)] * 3, pa.binary()), ([_png(7)] * 3, pa.large_binary()), ([struct] * 3, None),
    ):  # fmt: skip
        table = pa.table({"image": pa.array(cells, kind), "label": [0, 1, 2]})
        assert (decode(spec, table, "a.parquet").x == 7).all()


def test_pictures_that_cannot_be_used_are_counted_and_named() -> None:
    cells = [_png(), None, _png(), b"x", _file(Image.new("L", (5, 5))), None, None]
    with pytest.raises(DataError) as caught:
        decode(DATASETS["mnist"], pa.table({"image": cells, "label": [0] * 7}), "a.parquet")
    assert str(caught.value) == (
        "a.parquet: row 1 of column 'image' is not a readable picture: the cell is empty (5 of 7 pictures cannot be "
        "used; also row 3 of column 'image', row 4 of column 'image', row 5 of column 'image', …)"
    )


def _keys(folder: Path, **keys: Any) -> SourceSettings:
    return SourceSettings(dataset=str(folder), cache_dir=str(CACHE), **keys)


def test_columns_of_bytes_are_pictures_if_they_hold_some(tmp_path: Path) -> None:
    columns = {"photo": [_png(i) for i in range(8)], "key": [bytes([i]) for i in range(8)], "label": ["a", "b"] * 4}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "train.parquet")
    dataset = load_dataset(_keys(tmp_path))
    assert dataset.spec.shape == (1, 28, 28)
    np.testing.assert_array_equal(dataset.train.x[:, 0, 0, 0], np.arange(8))
    with pytest.raises(DataError, match="row 0 of column 'key' is not a readable picture: its content has no known"):
        load_dataset(_keys(tmp_path, input_column="key"))


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Make two classes of pictures in several formats, among what systems and people leave beside them."""
    for kind, shade in (("cat", 50), ("dog", 200), (".ipynb_checkpoints", 9), ("empty", 0), ("cat/more", 1)):
        (tmp_path / "data" / kind).mkdir(parents=True)
        for suffix in () if kind == "empty" else ("png", "BMP", "webp", "tif", "gif", "jpg", "Jpeg"):
            picture = Image.new("L", (28, 28), shade)
            picture.save(tmp_path / "data" / kind / f"1.{suffix}", quality=95)
    (tmp_path / "data" / "cat" / "._1.png").write_bytes(b"\0\5\26\7")
    (tmp_path / "data" / "dog" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "data" / "dog" / "notes.txt").write_text("mine")
    (tmp_path / "data" / "cover.png").write_bytes(_png())
    return tmp_path / "data"


SAID = (
    "skipped: 1 .db (no pictures), 1 .txt (no pictures), 2 hidden (names that begin with '.'), 7 in folders within a "
    "class, 1 outside of the classes' folders",
    "no picture in empty",
)


def test_nothing_beside_the_pictures_vanishes_without_a_word(classes: Path) -> None:
    found = pictures_in(classes)
    assert sorted(set(found.labels)) == ["cat", "dog"]
    assert len(found.files) == 14
    assert found.notes() == list(SAID)
    assert len(pictures_in(classes, deep=True).files) == 22
    (classes / "dog" / "circle").symlink_to(classes)
    (classes / "wolf").symlink_to(classes / "dog")
    assert len(pictures_in(classes).files) in (14, 21)  # a link is followed once


def test_a_device_says_what_it_found_and_skipped(classes: Path) -> None:
    classes.rename(classes.parent / "train")
    (classes.parent / "train" / "cat").rename(classes.parent / "train" / "3")
    (classes.parent / "train" / "dog").rename(classes.parent / "train" / "8")
    data = read_device(classes.parent, DATASETS["mnist"])
    lines = report(data, DATASETS["mnist"]).splitlines()
    counted = re.match(r"(\d+) training and (\d+) test examples, ", lines[0])
    assert counted is not None
    assert sum(map(int, counted.groups())) == 14
    assert lines[1:-1] == [f"{classes.parent / 'train'}: {said}" for said in SAID]
    assert "test examples equal training examples" in lines[-1]  # the pictures of the fixture are all alike


def test_a_dataset_in_a_folder_says_what_it_skipped(classes: Path) -> None:
    classes.rename(classes.parent / "train")
    keys = _keys(classes.parent)
    dataset = load_dataset(keys)
    assert dataset.spec.labels == ("cat", "dog")
    assert len(dataset.train) == 14
    notes = decisions(dataset.spec, keys.cache_dir)
    assert [note.partition("train: ")[2] for note in notes if "skipped" in note or "no picture" in note] == list(SAID)


def test_domains_of_pictures_have_no_hidden_classes(
    classes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_picture_folders(classes.parent, tmp_path / "out", 28)
    assert 'labels = [\n    "cat",\n    "dog",\n]' in (tmp_path / "out" / "schema.toml").read_text()
    assert [record.getMessage() for record in caplog.records] == [f"{classes}: {said}" for said in SAID]


def test_the_suffixes_are_those_that_pillow_reads() -> None:
    assert {".jpg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".jfif", ".avif"} <= suffixes()
    assert not {".eps", ".pdf", ".mpg", ".wmf", ".h5", ".csv", ".txt", ".parquet"} & suffixes()
