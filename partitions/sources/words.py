"""Word vectors from a file of pretrained embeddings in GloVe's text format, one word and its numbers per line.

The file is read once per machine and stored as a matrix under ``cache-dir``. Every process memory-maps the matrix, so
that only the vectors in use take memory. A text is converted to word indices once; these are converted to vectors when
a client's examples are loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilegium.common.contents import content_of
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import make_once
from florilegium.common.memo import remembered
from florilegium.common.settings import folder

_FORMAT = 2
"""Version of the format of the matrix in the cache; increase it so that old ones are not used."""
UNKNOWN = 0
"""Index of words that have no vector, and of the padding before a short text; its vector is 0."""


class Vocabulary:
    """Word indices and word vectors, read from the cache.

    Attributes:
        name: identifies the file of embeddings in its present version.
        vectors: float32 (V + 1, d); row 0 belongs to ``UNKNOWN``.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.name = cache.name
        self.vectors: NDArray[np.float32] = np.load(cache / "vectors.npy", mmap_mode="r")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        words = (self._cache / "words.txt").read_text(encoding="utf-8").split("\n")
        return {word: number for number, word in enumerate(words, start=1)}

    def encode(self, text: str, length: int) -> NDArray[np.int32]:
        """Return the indices of the last ``length`` words of ``text``, (length,); a shorter text is padded in front."""
        numbers = [self._numbers.get(word, UNKNOWN) for word in words_of(text)[-length:]]
        return np.array([UNKNOWN] * (length - len(numbers)) + numbers, np.int32)


def words_of(text: str) -> list[str]:
    """Split ``text`` into lower-case words and punctuation marks; as in GloVe, "don't" becomes "do" and "n't"."""
    return re.findall(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|m|d)\b|\w+|[.,!?;]", text.lower().replace("’", "'"))


@remembered(2)
def vocabulary(embeddings: str, cache_dir: str, size: int) -> Vocabulary:
    """Return the vocabulary of the file that key ``embeddings`` names.

    Args:
        embeddings: path of a text file, such as ``glove.6B.300d.txt``.
        cache_dir: folder for its binary form.
        size: d, the required length of a word vector.

    Raises:
        ConfigurationError: if no file is named.
        DataError: if the file is missing or has another format.
    """
    if not embeddings:
        raise ConfigurationError(
            f"embeddings: this dataset needs a file of word vectors of {size} numbers in GloVe's text format, such as "
            f"glove.6B.{size}d.txt; set embeddings to its path"
        )
    path, cache = folder(embeddings).absolute(), folder(cache_dir) / "embeddings"
    if not path.is_file():
        raise DataError(f"embeddings: there is no file {path}")
    facts = f"{_FORMAT} {path} {content_of([path], cache)} {size}"
    name = f"{path.stem}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    matrix = make_once(cache / name, lambda: _read(path, size), _write)
    return Vocabulary(matrix)


def _write(read: tuple[Sequence[str], NDArray[np.float32]], cache: Path) -> None:
    words, vectors = read
    cache.mkdir()
    np.save(cache / "vectors.npy", vectors)
    (cache / "words.txt").write_text("\n".join(words), encoding="utf-8")


def _read(path: Path, size: int) -> tuple[Sequence[str], NDArray[np.float32]]:
    words: list[str] = []
    rows = [np.zeros(size, np.float32)]
    with path.open(encoding="utf-8") as file:
        try:
            for line in file:
                word, *numbers = line.rstrip("\n").rsplit(" ", size)
                row = np.array(numbers, np.float32)
                if row.shape != (size,) or not np.isfinite(row).all():
                    raise ValueError(f"{len(numbers)} finite numbers")
                words.append(word)
                rows.append(row)
        except ValueError as error:  # UnicodeDecodeError is one
            raise DataError(
                f"embeddings: line {len(words) + 1} of {path} is not a word and {size} numbers, separated by spaces: "
                f"{error}"
            ) from error
    if not words:
        raise DataError(f"embeddings: {path} is empty")
    return words, np.stack(rows)
