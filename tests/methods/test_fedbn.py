"""FedBN: what travels, what stays, its limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import assert_rounded

# In a whole epoch a difference of rounding switches some ReLU or maximum of a pooling, and batch norm makes chaos of
# it: 1e-3 after three rounds, with instructions of one kind or another. After few steps none is switched: 3e-8.
KEYS: dict[str, Value] = {
    "method": "fedbn", "model": "cnn-bn", "num-clients": 4, "participation": 1.0, "rounds": 3, "local-steps": 4,
    "learning-rate": 0.005, "evaluate-every": 1, "batch-size": 32,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def test_batch_norm_neither_travels_nor_is_common(run: Runs) -> None:
    path = run("run", rounds=2)
    for message in (*run.grid.sent, *run.grid.received):
        for record in message.content.array_records.values():
            assert not [name for name in record if name.startswith(("conv1.1", "conv2.1", "conv3.1"))]
    kept = [load_file(sorted(folder.glob("state-*"))[-1]) for folder in sorted((path / "clients").iterdir())]
    assert len(kept) == 4
    names = ("weight", "bias", "running_mean", "running_var")
    for name in names:
        arrays = [state[f"conv2.1.{name}"] for state in kept]
        assert not any(np.array_equal(arrays[0], other) for other in arrays[1:])
    shared = read_checkpoint(path).arrays.keys()
    assert set(kept[0]) == {
        f"conv{i}.1.{n}" for i in (1, 2, 3) for n in ("weight", "bias", "running_mean", "running_var")
    }
    assert not shared & kept[0].keys()


def test_one_client_is_fedavg(run: Runs) -> None:
    keys: dict[str, Value] = {"num-clients": 1, "classes-per-client": 10}
    ours = read_checkpoint(run("ours", **keys)).arrays
    plain = read_checkpoint(run("plain", method="fedavg", **keys)).arrays
    for name, array in ours.items():
        assert_rounded(array, plain[name])


def test_resume_and_packing(run: Runs) -> None:
    run.check_resume_and_packing()


def test_network_without_batch_norm(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="no batch norm"):
        run("refused", model="mlp")
