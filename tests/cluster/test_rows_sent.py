"""Nodes without data are sent the rows of their clients, through Ray's object store, and compute the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.partitions.sources.source import DATA_VARIABLE
from tests import processes
from tests.cluster.compared import check_like_undisturbed
from tests.cluster.nodes import on_loopback
from tests.cluster.runs import finished_round, log_of, running, wait
from tests.partitions.made import make
from tests.support import config


def _write(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, rows in {"train": 600, "test": 200}.items():
        pyarrow.parquet.write_table(make("mnist", rows, seed=len(part)).table, folder / f"{part}.parquet")


@pytest.mark.simulation
def test_nodes_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the command has the dataset. Nodes that are to read it are refused; else one of two may still be lost."""
    keys: dict[str, Any] = {"dataset": "mnist", "rounds": 30}
    _write(tmp_path / "data" / "mnist")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with on_loopback(tmp_path, 2) as nodes:
        nodes.start(0)
        nodes.start(1)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
        refused = tmp_path / "refused"
        refused.mkdir()
        with running(nodes, refused, 2, **keys) as run:
            assert run.wait(processes.DEADLINE) == 1
        said = (refused / "run.out").read_text()
        assert "no node of the cluster can be used" in said
        assert "data-from = 'store'" in said
        keys["data-from"] = "store"
        with running(nodes, tmp_path, 2, **keys) as run:
            wait(run, tmp_path, lambda: log_of(tmp_path).count("is ready") == 2 and finished_round(tmp_path) >= 3)
            nodes.kill(1)
            assert run.wait(processes.DEADLINE) == 0, (tmp_path / "run.out").read_text()
    log = log_of(tmp_path)
    assert "run again elsewhere" in log
    assert re.search(r"rows by node: .*\(127\.0\.0\.2\) \d+ of 800 \(", log)
    assert re.search(r"rows by node: .* 800 of 800 \(100%, 0\.6 MB\)", log)  # all clients are evaluated
    check_like_undisturbed(tmp_path, 2, **keys)


def test_without_a_cluster_the_key_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_here(config(data_from="store", rounds=1, num_clients=2, local_epochs=1), tmp_path / "run")
    assert "data-from: no effect, read only on a cluster" in caplog.text
