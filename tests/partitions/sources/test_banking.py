"""Banking77 from files like the authors': classes in the order of the list of intents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from florilegium.common.errors import DataError
from florilegium.partitions.loading import load_dataset
from tests.support import settings

NAMES = [f"intent_{number}" for number in range(77)]


def _write(folder: Path, names: object = NAMES, unknown: str = "") -> str:
    (folder / "banking77").mkdir()
    (folder / "banking77" / "categories.json").write_text(json.dumps(names))
    for part in ("train", "test"):
        rows = [f'"a question, with\na comma",{name}' for name in (*reversed(NAMES), *([unknown] if unknown else []))]
        (folder / "banking77" / f"{part}.csv").write_text("text,category\n" + "\n".join(rows) + "\n")
    return str(folder)


def test_classes_follow_the_list(tmp_path: Path) -> None:
    found = load_dataset(settings(dataset="banking77", data_dir=_write(tmp_path)))
    assert found.train.y.tolist() == [*reversed(range(77))]
    assert found.test is not None
    assert len(found.test) == 77


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"unknown": "other"}, "intent 'other' is not in"), ({"names": NAMES[:5]}, "must list 77 names")],
)
def test_wrong_files_are_named(wrong: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        load_dataset(settings(dataset="banking77", data_dir=_write(tmp_path, **wrong)))  # type: ignore[arg-type]


def test_without_files_it_says_where_they_are_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.csv.*is missing.*PolyAI-LDN"):
        load_dataset(settings(dataset="banking77", data_dir=str(tmp_path)))
