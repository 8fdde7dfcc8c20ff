"""Key ``vectorise``: what can be stacked computes the same, to rounding, for any number of clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.together import Company
from florilegium.clients.core.training_facts import Training
from florilegium.clients.layers import stacked
from florilegium.clients.node.crew import Crew
from florilegium.common.declarations import gap
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.fingerprints import cases, own
from tests.grid import run_app
from tests.support import config

VECTORISED = [name for name, method in METHODS.items() if not why_not(method, "vectorised")]
UNEVEN: dict[str, Value] = {
    "partitioner": "dirichlet", "rounds": 1, "finetune-epochs": 1, "participation": 1.0, "ranks.levels": "1",
}  # fmt: skip
"""Clients of one rank are asked together."""


def _keys(method: str, folder: Path, name: str, **more: Value) -> dict[str, Value]:
    short = {**UNEVEN, "rounds": own(method).get("rounds", UNEVEN["rounds"])}
    return config(**{**cases()[method], **short, **more, "runs-dir": str(folder), "run-name": name})


def _left(run: Path) -> tuple[Arrays, list[dict[str, Any]]]:
    """Return all arrays that a run leaves, of server and clients, and its evaluations."""
    checkpoint = read_checkpoint(run)
    found = {f"model {n}": a for n, a in checkpoint.arrays.items()} | {
        f"state {n}": a for n, a in checkpoint.state.items()
    }
    for path in sorted((run / "clients").rglob("*.safetensors")):
        client, part = path.parent.name, path.name.rpartition("-")[0]  # the rest is the run's identity
        found |= {f"{client} {part} {n}": a for n, a in load_file(path).items()}
    return found, [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _assert_close(first: Path, second: Path, tolerance: float) -> None:
    (arrays, lines), (others, other_lines) = _left(first), _left(second)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=tolerance, atol=tolerance, err_msg=name)
    for line, other in zip(lines, other_lines, strict=True):
        for group in line.keys() & {"seen", "unseen", "unlabeled"}:
            assert line[group] == pytest.approx(other[group], rel=1e-3, abs=1e-3)
    assert not (second / "failures.jsonl").exists()


@pytest.mark.parametrize("method", VECTORISED)
def test_a_methods_results_do_not_depend_on_how_many_clients_train_at_once(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    run = Company.run
    monkeypatch.setattr(Company, "run", lambda self, tasks: together.append(len(tasks)) or run(self, tasks))
    for name, vectorise in (("one", 1), ("four", 4)):
        run_here(_keys(method, tmp_path, name, vectorise=vectorise), tmp_path / name)
        assert set(together) == ({2, 4} if vectorise == 4 else set())  # six clients
    _assert_close(tmp_path / "one", tmp_path / "four", 1e-4)


def test_a_resumed_run_and_other_nodes_compute_the_same(tmp_path: Path) -> None:
    run_here(_keys("ditto", tmp_path, "whole", vectorise=3, rounds=2), tmp_path / "whole")
    run_here(_keys("ditto", tmp_path, "cut", vectorise=3), tmp_path / "cut")
    run_here(_keys("ditto", tmp_path, "cut", vectorise=3, rounds=2, resume="cut"), tmp_path / "cut")
    whole, cut = (read_checkpoint(tmp_path / name).arrays for name in ("whole", "cut"))
    assert all((whole[name] == cut[name]).all() for name in whole)  # bit for bit
    run_app(_keys("ditto", tmp_path, "nodes", vectorise=2, rounds=2), nodes=2)
    _assert_close(tmp_path / "whole", tmp_path / "nodes", 1e-4)


@pytest.mark.parametrize("value", ["0", "many", "1.5", 0, "-3"])
def test_other_values_are_refused(value: Value, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=f"'{value}' is neither a number of clients ≥ 1, such as 16, nor 'auto'"):
        run_here(_keys("fedavg", tmp_path, "refused", vectorise=value), tmp_path / "refused")


def test_a_subclass_that_states_nothing_runs_alone() -> None:
    class Other(METHODS["fedavg"].client_class()):  # type: ignore[misc]
        pass

    assert gap(Other, Training, stacked.gap, None)
    assert not Crew(Other, None, None, None)._allowed  # type: ignore[arg-type]
