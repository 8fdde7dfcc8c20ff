"""Files that change before a worker process of a simulation has read them are noticed by their content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from florilegium.apps import client_app
from florilegium.common.errors import RunError
from florilegium.common.memo import forget
from florilegium.common.settings import Value
from tests.grid import run_app
from tests.support import config


def _table(path: Path, values: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x,label\n" + "".join(f"{value},{value % 2}\n" for value in values))


def _keys(tmp_path: Path, **more: Value) -> dict[str, Value]:
    for number, site in enumerate("abc"):
        _table(tmp_path / "own" / f"{site}.csv", range(100 * number, 100 * number + 20))
    return config(**{
        "dataset": str(tmp_path / "own"), "cache-dir": str(tmp_path / "cache"), "partitioner": "natural",
        "num-clients": 0, "model": "linear", "rounds": 3, "participation": 1.0, "evaluate-every": 1,
        "runs-dir": str(tmp_path / "runs"), "run-name": "r", **more,
    })  # fmt: skip


def _in_round(number: int, change: Callable[[], None]) -> Callable[[Message], None]:
    """Return what lets a worker start anew in a round, after a change."""
    done: list[int] = []

    def begin(message: Message) -> None:
        config: Any = message.content.config_records.get("config", {})
        if config.get("round") == number and not done:
            done.append(number)
            change()
            forget()
            client_app._host.cache_clear()
            client_app._check_data.cache_clear()

    return begin


def _spoil(path: Path) -> None:
    """Change one number; the file keeps its size."""
    text = path.read_text()
    path.write_text(text.replace("19,1", "91,1"))
    assert len(path.read_text()) == len(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: _spoil(own / "a.csv"), lambda own: _table(own / "c.csv", range(200, 221)),
        lambda own: (own / "c.csv").unlink(), lambda own: _table(own / "d.csv", range(300, 320)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("round", [1, 2])
def test_a_worker_that_reads_changed_files_ends_the_run(
    tmp_path: Path, change: Callable[[Path], None], round: int
) -> None:
    keys = _keys(tmp_path)
    with pytest.raises(
        RunError, match=r"^the files of the data have changed since the run began: one of its processes"
    ):
        run_app(keys, intercept=_in_round(round, lambda: change(tmp_path / "own")))
    status = json.loads((tmp_path / "runs" / "r" / "status.json").read_text())
    assert status["state"] == "failed"


@pytest.mark.parametrize(
    "change",
    [
        lambda own: None, lambda own: (own / "a.csv").touch(),
        lambda own: (own / "a.csv").write_bytes((own / "a.csv").read_bytes()),
    ],
)  # fmt: skip
def test_a_worker_that_reads_the_same_goes_on(tmp_path: Path, change: Callable[[Path], None]) -> None:
    run_app(_keys(tmp_path), intercept=_in_round(2, lambda: change(tmp_path / "own")))
    assert (tmp_path / "runs" / "r" / "summary.json").is_file()


def test_made_data_are_always_the_same(tmp_path: Path) -> None:
    keys = config(**{
        "dataset": "synthetic-linear", "num-clients": 4, "partitioner": "natural", "samples-per-client": 20,
        "model": "linear", "rounds": 1, "runs-dir": str(tmp_path), "run-name": "r",
    })  # fmt: skip
    run_app(keys, intercept=_in_round(1, lambda: None))
    assert (tmp_path / "r" / "summary.json").is_file()
