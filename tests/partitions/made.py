"""Small parquet files in the hub's schemas, made here, with the arrays they must decode to."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from florilegium.partitions.sources.pictures import pixels, read_picture

LEAF = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


@dataclass(frozen=True)
class Made:
    """A table, and what its rows must become: inputs, classes, and client names by column."""

    table: pyarrow.Table
    x: np.ndarray
    y: np.ndarray
    clients: dict[str, list[str]]


def png(values: np.ndarray) -> dict[str, bytes | None]:
    """Return the cell of an image column for grey (h, w) or colour (h, w, 3) pixels."""
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def decode_image(data: bytes, channels: int) -> np.ndarray:
    """Return the pixels of a picture's file, (height, width, ``channels``)."""
    picture = read_picture(data)
    return pixels(picture, channels, picture.size)


def _images(column: str, label: str, side: int, classes: int, *, colour: bool, client: str = "", extra: str = ""):
    def make(rows: int, rng: np.random.Generator) -> Made:
        pixels = rng.integers(256, size=(rows, side, side, 3) if colour else (rows, side, side), dtype=np.uint8)
        y = (np.arange(rows) + rng.integers(classes)) % classes
        columns = {column: pyarrow.array([png(image) for image in pixels], type=IMAGE)}
        clients = {}
        if client:
            clients = {client: [f"f{i % 4:04d}_00" for i in range(rows)]}
            columns |= {client: clients[client]}
        if extra:
            columns |= {extra: rng.integers(20, size=rows)}
        table = pyarrow.table({**columns, label: y})
        return Made(table, pixels.reshape(rows, side, side, -1), y, clients)

    return make


def _codes(text: str, length: int) -> list[int]:
    codes = [LEAF.index(character) if character in LEAF else 80 for character in text][-length:]
    return [80] * (length - len(codes)) + codes


def _shakespeare(rows: int, rng: np.random.Generator) -> Made:
    texts = ["".join(rng.choice(list(LEAF), size=80)) for _ in range(rows)]
    y = rng.integers(80, size=rows)
    names = [("ROMEO", "JULIET", "First Citizen")[i % 3] for i in range(rows)]
    table = pyarrow.table({"client_id": names, "x": texts, "y": [LEAF[code] for code in y]})
    return Made(table, np.array([_codes(text, 80) for text in texts]), y, {"client_id": names})


def _sent140(rows: int, rng: np.random.Generator) -> Made:
    texts = ["so happy #today~" + "!" * int(rng.integers(200)) for _ in range(rows)]
    y = np.arange(rows) % 2
    users = [f"user{i % 3}" for i in range(rows)]
    table = pyarrow.table(
        {
            "text": texts,
            "date": ["Mon May 11 03:17:40 UTC 2009"] * rows,
            "user": users,
            "sentiment": pyarrow.array((4 * y).tolist(), type=pyarrow.int32()),  # 0 negative, 4 positive
            "query": ["NO_QUERY"] * rows,
        }
    )
    return Made(table, np.array([_codes(text, 140) for text in texts]), y, {"user": users})


# Two rows of UCI Adult; where their ones stand among 9 + 16 + 7 + 15 + 6 + 5 + 2 + 42 = 102 categories in
# alphabetical order ("?" first), and their six numbers.
ADULT_ROWS = (
    (
        {
            "age": 39, "workclass": "State-gov", "fnlwgt": 77516, "education": "Bachelors", "education.num": 13,
            "marital.status": "Never-married", "occupation": "Adm-clerical", "relationship": "Not-in-family",
            "race": "White", "sex": "Male", "capital.gain": 2174, "capital.loss": 0, "hours.per.week": 40,
            "native.country": "United-States", "income": "<=50K",
        },
        (7, 9 + 9, 25 + 4, 32 + 1, 47 + 1, 53 + 4, 58 + 1, 60 + 39),
        (39, 77516, 13, 2174, 0, 40),
    ),
    (
        {
            "age": 17, "workclass": "?", "fnlwgt": 300000, "education": "10th", "education.num": 6,
            "marital.status": "Divorced", "occupation": "?", "relationship": "Own-child",
            "race": "Black", "sex": "Female", "capital.gain": 0, "capital.loss": 1602, "hours.per.week": 20,
            "native.country": "Trinadad&Tobago", "income": ">50K",
        },
        (0, 9 + 0, 25 + 0, 32 + 0, 47 + 3, 53 + 2, 58 + 0, 60 + 38),
        (17, 300000, 6, 0, 1602, 20),
    ),
)  # fmt: skip
# Mean and standard deviation of the training part's numeric columns, as UCI's 32,561 rows have them.
ADULT_MEAN = np.array([38.581647, 189778.366512, 10.080679, 1077.648844, 87.303830, 40.437456])
ADULT_STD = np.array([13.640433, 105549.977697, 2.572720, 7385.292085, 402.960219, 12.347429])


def _adult(rows: int, rng: np.random.Generator) -> Made:
    chosen = [ADULT_ROWS[i % 2] for i in range(rows)]
    x = np.zeros((rows, 108))
    for features, (_, ones, numbers) in zip(x, chosen, strict=True):
        features[:6] = (np.array(numbers) - ADULT_MEAN) / ADULT_STD
        features[6 + np.array(ones)] = 1
    cells = [cell for cell, _, _ in chosen]
    columns = ("occupation", "workclass", "native.country", "education")
    clients = {name: [cell[name] for cell in cells] for name in columns}
    return Made(pyarrow.Table.from_pylist(cells), x, np.arange(rows) % 2, clients)


SCHEMAS: dict[str, Callable[[int, np.random.Generator], Made]] = {
    "cifar10": _images("img", "label", 32, 10, colour=True),
    "cifar100": _images("img", "fine_label", 32, 100, colour=True, extra="coarse_label"),
    "mnist": _images("image", "label", 28, 10, colour=False),
    "fashion_mnist": _images("image", "label", 28, 10, colour=False),
    "mnist_m": _images("image", "label", 28, 10, colour=True),
    "svhn": _images("image", "label", 32, 10, colour=True),
    "emnist_letters": _images("image", "label", 28, 26, colour=False),
    "femnist": _images("image", "character", 28, 62, colour=False, client="writer_id", extra="hsf_id"),
    "shakespeare": _shakespeare,
    "sent140": _sent140,
    "adult": _adult,
}


def make(name: str, rows: int, seed: int = 0) -> Made:
    """Return ``rows`` rows of dataset ``name``."""
    return SCHEMAS[name](rows, np.random.default_rng(seed))


def write(folder: Path, name: str, train: int, test: int = 0) -> dict[str, Made]:
    """Write ``folder/<name>/train.parquet`` and, unless ``test`` is 0, ``test.parquet``; return what they hold."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    parts = {"train": make(name, train, seed=0)} | ({"test": make(name, test, seed=1)} if test else {})
    for part, made in parts.items():
        pyarrow.parquet.write_table(made.table, folder / name / f"{part}.parquet")
    return parts
