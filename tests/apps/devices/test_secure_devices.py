"""Secure aggregation with real SuperNodes: devices, in processes of their own, learn what a simulation learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.layers.secure import SECRETS
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.site import site
from tests.support import config, settings

pytestmark = [pytest.mark.deployment, pytest.mark.long]

FEDERATION: dict[str, Value] = {"partitioner": "iid", "num-clients": 3, "seed": 5}
KEYS: dict[str, Value] = {
    "method": "fedavg", "dataset": "digits", "num-clients": 3, "seed": 5, "participation": 1.0, "rounds": 1,
    "model": "linear", "local-epochs": 1, "evaluate-every": 0, "start-timeout": 600.0, "max-update-norm": 10.0,
}  # fmt: skip


def test_devices_learn_what_a_plain_simulation_learns(tmp_path: Path) -> None:
    federation, dataset = federate(settings(**FEDERATION))
    with site(tmp_path) as here:
        for client in range(3):
            write_device(federation, dataset, client, tmp_path / "data" / str(client))
            here.start_node(str(client), tmp_path / "data" / str(client))
        path = here.run("real", **KEYS, **{"secure-aggregation": True})
    run_app(config(**{**KEYS, **FEDERATION, "run-name": "simulated", "runs-dir": str(path.parent)}))
    ours, theirs = (read_checkpoint(folder).arrays for folder in (path, path.parent / "simulated"))
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-5)
    assert not [*tmp_path.rglob(SECRETS)]
