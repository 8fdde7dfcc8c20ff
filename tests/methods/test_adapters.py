"""Every method with every kind of adapters: a round of those that go together, and the reasons of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.generate.adapter_pages import KINDS, keys, methods, refusal
from florilegium.clients.core.wire import Reply, unpack
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.built import build_network
from florilegium.models.parameters import frozen
from florilegium.strategies.folder.metrics_file import read_evaluations
from tests.runs import Runs
from tests.support import config, settings

NAMED = {
    "fedavg", "fedprox", "scaffold", "ditto", "fedper", "fedrep", "fedbabu", "apfl", "fedala", "per-fedavg", "local",
    "ppfe", "pfedfda",
}  # fmt: skip
"""Methods that run with every change, with LoRA."""
PAIRS = [
    pytest.param(
        method, kind, marks=() if kind == "lora" and method in NAMED else pytest.mark.long, id=f"{method}, {kind}"
    )
    for method in methods()
    for kind in KINDS
]
SMALL: dict[str, Value] = {
    "num-clients": 6, "samples-per-client": 30, "batch-size": 15, "local-epochs": 1, "participation": 0.67,
    "min-success": 1.0, "evaluate-every": 1, "unseen-fraction": 0.34, "learning-rate": 0.01,
}  # fmt: skip


def _run(tmp_path: Path, method: str, kind: str, **more: Value) -> tuple[Runs, Path]:
    runs = Runs(tmp_path, {**SMALL, **keys(method, kind), **more})
    return runs, runs("run")


@pytest.mark.parametrize(("method", "kind"), PAIRS)
def test_a_round(method: str, kind: str, tmp_path: Path) -> None:
    if reason := refusal(method, kind):
        with pytest.raises(ConfigurationError) as found:
            _run(tmp_path, method, kind)
        assert str(found.value) == reason
        assert not list(tmp_path.glob("run/clients"))
        return
    runs, path = _run(tmp_path, method, kind)
    assert not (path / "failures.jsonl").exists()
    figures = read_evaluations(path)[-1]
    assert all(np.isfinite(figures[group]["loss"]) for group in ("seen", "unseen"))
    _check_what_travels(runs, method, kind)


def _check_what_travels(runs: Runs, method: str, kind: str) -> None:
    """Check that no frozen parameter is sent or returned, and that something is, unless clients learn alone.

    With FedPer they do if the head alone is trained, since the body is what they share.
    """
    chosen = settings(**{**SMALL, **keys(method, kind)})
    base = {*frozen(build_network(chosen, (1, 8, 8), 10, chosen.seed))}
    assert base
    moved = 0
    for message in (*runs.grid.sent, *runs.grid.received):
        content: Any = message.content
        arrays = unpack(content["arrays"]) if "arrays" in content else {}
        if message in runs.grid.received and "metrics" in content:
            arrays = Reply.unpack(content).arrays
        moved += sum(array.nbytes for array in arrays.values())
        assert not [name for name in arrays if name.rpartition(":")[2] in base or name in base]
    assert bool(moved) == ((method, kind) not in {("fedper", "head"), *(("local", one) for one in KINDS)})


def test_fedadam_steps_along_adapters(tmp_path: Path) -> None:
    _, path = _run(tmp_path, "fedavg", "lora", **{"server-optimizer": "fedadam", "server-learning-rate": 0.01})
    assert not (path / "failures.jsonl").exists()


def test_a_method_for_lora_is_fedavg_with_lora(tmp_path: Path) -> None:
    more: dict[str, Value] = {**SMALL, "unseen-fraction": 0.0, "rounds": 2}
    plain, named = (Runs(tmp_path / method, {**keys(method, "lora"), **more}) for method in ("fedavg", "fedit"))
    first, second = (runs("run") for runs in (plain, named))
    assert (first / "metrics.jsonl").exists()
    assert [line["seen"] for line in read_evaluations(first)] == [line["seen"] for line in read_evaluations(second)]
    assert config(**keys("fedit", "lora"))["adapter.kind"] == "lora"
