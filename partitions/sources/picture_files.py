"""Which files of a folder are pictures, and which are skipped: nothing disappears without being counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from florilegium.partitions.sources.names import name_of
from florilegium.partitions.sources.parts import HIDDEN
from florilegium.partitions.sources.pictures import UNREAD


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes, in lower case, of the files that are read as pictures."""
    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, kind in known if kind in Image.OPEN and kind not in UNREAD)


@dataclass(frozen=True)
class Pictures:
    """The pictures in a folder.

    Attributes:
        files: their files, sorted.
        skipped: how many other files there are, by the reason why they are skipped.
        empty: names of the folders of classes that have no picture.
    """

    files: tuple[Path, ...]
    skipped: Mapping[str, int]
    empty: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        """The name of each file's folder, its class."""
        return [name_of(file.parent.name) for file in self.files]

    def notes(self) -> list[str]:
        """Return a sentence for each kind of file and folder that is skipped."""
        skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return ([f"skipped: {skipped}"] if skipped else []) + (
            [f"no picture in {', '.join(self.empty)}"] if self.empty else []
        )


def pictures_in(folder: Path, *, deep: bool = False, apart: Collection[str] = ()) -> Pictures:
    """Find the image files in ``<folder>/<class>/``; if ``deep``, those at any depth in ``folder``.

    Args:
        folder: the folder.
        deep: whether subfolders are no classes.
        apart: names of subfolders that are left aside, and not counted.
    """
    files, skipped = [], Counter[str]()
    classes = {} if deep else {child.name: 0 for child in folders_in(folder) if child.name not in apart}
    for file, hidden in _walk(folder, apart, set()):
        depth = len(file.relative_to(folder).parts)
        if hidden:
            skipped["hidden (names that begin with '.')"] += 1
        elif file.suffix.lower() not in suffixes():
            skipped[f"{file.suffix.lower() or 'without suffix'} (no pictures)"] += 1
        elif not deep and depth != 2:
            skipped["outside of the classes' folders" if depth < 2 else "in folders within a class"] += 1
        else:
            files.append(file)
            classes[file.parent.name] = classes.get(file.parent.name, 0) + 1
    return Pictures(tuple(files), skipped, tuple(name for name, count in classes.items() if not count))


def folders_in(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, sorted, without hidden ones; [] if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(HIDDEN))


def _walk(folder: Path, apart: Collection[str], visited: set[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield all files in a folder, and whether each is hidden; of a hidden folder, the folder itself."""
    if not folder.is_dir() or folder.resolve() in visited:  # links may lead in a circle
        return
    visited.add(folder.resolve())
    for child in sorted(folder.iterdir()):
        if child.name.startswith(HIDDEN):
            yield child, True
        elif not child.is_dir():
            yield child, False
        elif child.name not in apart:
            yield from _walk(child, (), visited)
