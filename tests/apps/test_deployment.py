"""A real SuperLink and three real SuperNodes on loopback, each with its own data, against the same run simulated."""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from apps.settings import ROOT
from clients.export import load_model
from partitions.devices import write_device
from partitions.federation import federate
from strategies.run_folder import read_checkpoint, read_metrics
from tests import processes
from tests.grid import run_app
from tests.support import config, settings

pytestmark = pytest.mark.deployment

DEADLINE = 900


def _digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.parquet")))).hexdigest()


def _wait_for_end(run: Path, log: Path) -> dict[str, object]:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        status = json.loads((run / "status.json").read_text()) if (run / "status.json").exists() else {}
        if status.get("state") in ("completed", "failed"):
            return status
        time.sleep(0.3)
    raise AssertionError(f"the run did not end in {DEADLINE} s: {log.read_text()[-3000:]}")


def test_devices_learn_what_the_simulation_learns(tmp_path: Path) -> None:
    deployed = tomllib.loads((ROOT / "pyproject-flwr.toml").read_text())
    deployed["evaluate-every"] = 0  # every message starts a process on a device: evaluate once, at the end
    same = dict(deployed) | {"partitioner": "classes", "classes-per-client": 4, "seed": 5}
    federation, dataset = federate(settings(**same))
    for client in range(3):
        write_device(federation, dataset, client, tmp_path / "data" / str(client))
    before = [_digest(tmp_path / "data" / str(client)) for client in range(3)]

    port = processes.free_port()
    home = tmp_path / "user"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    run_config = tmp_path / "run.toml"
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in deployed.items())
    run_config.write_text(keys + f'seed = 5\nrun-name = "deployed"\nruns-dir = "{tmp_path}/runs"\n')
    with ExitStack() as stack:
        log = tmp_path / "superlink.log"
        superlink = stack.enter_context(
            processes.process(
                ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
                 "--disable-runtime-dependency-installation"], tmp_path / "server", log,
            )
        )  # fmt: skip
        processes.wait_for_port(port, superlink, log)
        for client in range(3):
            node = f'data-path="{tmp_path}/data/{client}" client-id="{client}" state-dir="{tmp_path}/state/{client}"'
            stack.enter_context(
                processes.process(
                    ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1",
                     "--port", str(processes.free_port()), "--node-config", node],
                    tmp_path / f"node{client}", tmp_path / f"node{client}.log",
                )
            )  # fmt: skip
        processes.flwr(["run", str(ROOT), "site", "--run-config", str(run_config)], home)
        status = _wait_for_end(tmp_path / "runs" / "deployed", log)
    assert status["state"] == "completed", status

    run_app(config(**same, **{"run-name": "simulated", "runs-dir": str(tmp_path / "runs")}))
    real, simulated = (read_metrics(tmp_path / "runs" / name) for name in ("deployed", "simulated"))
    assert [line["round"] for line in real] == [3]
    for a, b in zip(real, simulated, strict=True):
        assert a["seen"]["accuracy"] == b["seen"]["accuracy"]
        np.testing.assert_allclose(a["seen"]["loss"], b["seen"]["loss"], rtol=1e-5)
    model, twin = (read_checkpoint(tmp_path / "runs" / name).arrays for name in ("deployed", "simulated"))
    for name, array in model.items():
        np.testing.assert_allclose(array, twin[name], atol=1e-6)

    assert [_digest(tmp_path / "data" / str(client)) for client in range(3)] == before
    for client in range(3):  # each device kept the model it would use; for FedAvg that is the global one
        kept, card = load_model(tmp_path / "state" / str(client) / "deployed" / str(client))
        assert card.client == str(client)
        np.testing.assert_allclose(kept.state_dict()["fc3.weight"].numpy(), model["fc3.weight"], atol=1e-7)
