"""Real SuperNodes whose owners have policies: one takes part within its bounds, one refuses, and the run goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from florilegium.common.settings import Value
from florilegium.owner.home import open_home
from florilegium.owner.keys import public
from florilegium.owner.log import verify_log
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.owner.made import DEVICE as POLICY
from tests.owner.made import entries, made
from tests.site import site
from tests.support import settings

pytestmark = pytest.mark.deployment

KEYS: dict[str, Value] = {
    "dataset": "digits", "num-clients": 2, "seed": 5, "participation": 1.0, "local-epochs": 1, "batch-size": 16,
    "evaluate-every": 0, "start-timeout": 600.0, "method": "fedavg",
}  # fmt: skip


def test_owners_decide(tmp_path: Path) -> None:
    federation, dataset = federate(settings(**{"partitioner": "iid", "num-clients": 2, "seed": 5}))
    homes = [made(tmp_path / f"owner-{client}", POLICY) for client in range(2)]
    with site(tmp_path / "site") as here:
        for client in range(2):
            write_device(federation, dataset, client, here.folder / "data" / str(client))
            here.start_node(str(client), here.folder / "data" / str(client), OWNER=homes[client].folder)
        first = here.run("first", **KEYS, rounds=2)
        made(homes[1].folder, POLICY.replace("norm = 10.0", "norm = 0.01"))  # counts from the next message on
        second = here.run("second", **KEYS, rounds=1)
        made(homes[1].folder, POLICY.replace("max = 2", "max = 1"))
        third = here.run("third", **KEYS | {"num-clients": 1, "min-success": 0.0}, rounds=2)
    lines = entries(homes[0])
    assert [line["why"] for line in lines if line["what"] in ("refused", "failed")] == []
    assert [(line["phase"], line["round"], line["scaled"]) for line in lines if line.get("run") == "first"] == [
        ("train", 1, False), ("train", 2, False), ("test", 2, False)
    ]  # fmt: skip
    assert lines[0]["not_enforced"] == []
    assert all(verify_log(home.log_file, public(home.key())).count for home in homes)
    assert next(line["scaled"] for line in entries(homes[1], "reply") if line.get("run") == "second")
    models = [read_checkpoint(run).arrays for run in (first, second, third)]
    assert all(np.isfinite(array).all() for model in models for array in model.values())
    refused = [line["line"] for line in entries(homes[1], "refused")]
    assert set(refused) == {"runs.keys.rounds"}
    summary = json.loads((third / "summary.json").read_text())
    (why,) = summary["refused"]
    assert re.fullmatch(r"node \d+: the owner of this device has refused: policy, runs\.keys\.rounds", why)
    assert open_home(homes[0].folder).usage_file.exists()
