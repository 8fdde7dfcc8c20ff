"""What a run is made from: a run is not continued, reopened or reused with other data or code."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import florilegium as fl
from florilegium.apps.assembly.parts import code_of
from florilegium.apps.origins.hashes import origins_of
from florilegium.apps.origins.packages import import_path, used_code
from florilegium.apps.settings.configuration import complete, parse
from florilegium.apps.sweeps.named_runs import run_all
from florilegium.apps.sweeps.sweep import runs_of
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.memo import forget
from florilegium.partitions.federation import federate
from florilegium.partitions.fingerprints import fingerprint_of_dataset, fingerprint_of_federation
from florilegium.partitions.shares import Canaries, Noise, Shares
from tests.support import CACHE, config

QUICK: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "progress": False, "model": "linear"}

NETS = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.{}(), nn.Linear(4, classes))
"""


def write_clients(folder: Path, names: list[str], seed: int = 0) -> None:
    """Write a CSV file for each client, with rows drawn from ``seed``."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.csv"):
        old.unlink()
    rng = np.random.default_rng(seed)
    for name in names:
        rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rng.normal(size=(20, 2))]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n", encoding="utf-8")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    folders = {"runs_dir": str(tmp_path / "runs"), "cache_dir": str(tmp_path / "cache")}
    write_clients(tmp_path / "own", ["ann", "bob"])
    return {
        **QUICK,
        **folders,
        "method": "fedavg",
        "partitioner": "natural",
        "num_clients": 0,
        "dataset": str(tmp_path / "own"),
    }


def test_other_data_are_noticed(keys: dict[str, Any], tmp_path: Path) -> None:
    run = fl.run(**keys)
    assert len(run.model("ann").state_dict()) == 2
    write_clients(tmp_path / "own", ["al", "ann", "bob"])
    with pytest.raises(ConfigurationError, match=r"began with another dataset and another partition; go back"):
        fl.run(resume=run.name, **{**keys, "rounds": 2})
    with pytest.raises(RunError, match="was made from another dataset and another partition; its clients are not"):
        run.model("ann")
    write_clients(tmp_path / "own", ["ann", "bob"], seed=1)
    with pytest.raises(ConfigurationError, match="began with another dataset; go back"):
        fl.run(resume=run.name, **{**keys, "rounds": 2})
    write_clients(tmp_path / "own", ["ann", "bob"])  # the same rows in newer files
    assert fl.run(resume=run.name, **{**keys, "rounds": 2}).summary["rounds"] == 2


def test_other_code_is_noticed(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "origin_nets.py").write_text(NETS.format("ReLU"), encoding="utf-8")
    run = fl.run(**{**keys, "model": "origin_nets:net"})
    (tmp_path / "origin_nets.py").write_text(NETS.format("Tanh"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="began with another code of origin_nets; go back"):
        fl.run(resume=run.name, **{**keys, "model": "origin_nets:net", "rounds": 2})
    run.model("ann")
    assert "was made with another code of origin_nets" in caplog.text
    sys.modules.pop("origin_nets")


def test_a_task_that_only_the_schema_names_is_code_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noticed if it changes, and imported by other processes; key ``task`` goes before it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "origin_tasks.py").write_text("FIRST = 1\n", encoding="utf-8")
    (tmp_path / "own").mkdir(exist_ok=True)
    schema = 'target = "a"\ntask = "origin_tasks:Own"\n[numbers]\nb = [0.0, 1.0]\n'
    (tmp_path / "own" / "schema.toml").write_text(schema, encoding="utf-8")
    keys = config(dataset=str(tmp_path / "own"))
    assert used_code(keys) == ("origin_tasks:Own",)
    assert import_path(keys).endswith(str(tmp_path))
    first = code_of(keys)
    (tmp_path / "origin_tasks.py").write_text("SECOND = 2\n", encoding="utf-8")
    forget()
    assert code_of(keys) != first
    assert not used_code({**keys, "task": "regression"})
    assert not used_code({**keys, "dataset": str(tmp_path / "nowhere")})


def test_a_sweep_does_not_reuse_runs_of_other_data(keys: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        f'method = "fedavg"\ndataset = "{tmp_path / "own"}"\n[sweeps.seeds]\nseeds = [1]\n', encoding="utf-8"
    )
    own = {
        name.replace("_", "-"): value for name, value in keys.items() if name not in ("progress", "dataset", "method")
    }
    wanted = runs_of(str(recipe), "seeds", own)
    fl.run(**{**keys, "run_name": wanted[0].name, "seed": 1})

    def never(keys: Any) -> Path:
        raise AssertionError

    run_all(wanted, tmp_path / "runs", never).all()
    write_clients(tmp_path / "own", ["ann", "bob"], seed=1)
    forget()
    with pytest.raises(ConfigurationError, match="which was made from another dataset"):
        run_all(wanted, tmp_path / "runs", never)


def test_another_initial_model_is_noticed(keys: dict[str, Any], tmp_path: Path) -> None:
    def base(seed: int) -> None:
        shutil.rmtree(tmp_path / "runs" / "base", ignore_errors=True)
        fl.run(**{**keys, "run_name": "base", "seed": seed})

    base(1)
    (first,) = fl.compare(["fedavg"], init="base", **keys).runs["fedavg"]
    base(1)  # the same model again
    (same,) = fl.compare(["fedavg"], init="base", **keys).runs["fedavg"]
    assert same.name == first.name
    base(2)
    (other,) = fl.compare(["fedavg"], init="base", **keys).runs["fedavg"]
    assert other.name != first.name
    assert other.summary["final"] != first.summary["final"]
    with pytest.raises(ConfigurationError, match="began with another initial model; go back"):
        fl.run(resume=first.name, runs_dir=keys["runs_dir"], rounds=2, progress=False)
    first.model("ann")  # is in its checkpoint
    shutil.rmtree(tmp_path / "runs" / "base")
    with pytest.raises(ConfigurationError, match="there is no run 'base'"):
        fl.compare(["fedavg"], init="base", **keys)


def test_an_initial_file_is_an_origin(tmp_path: Path) -> None:
    config = complete({"cache-dir": str(CACHE), "num-clients": 4, "init": str(tmp_path / "start.pt")})

    def origins() -> dict[str, str]:
        return origins_of(config, parse(config)[0])

    assert "initial model" not in origins()
    (tmp_path / "start.pt").write_bytes(b"one")
    first = origins()["initial model"]
    (tmp_path / "start.pt").write_bytes(b"two")
    assert origins()["initial model"] != first


def test_fingerprints_change_with_all_that_a_federation_holds() -> None:
    settings = parse(complete({"cache-dir": str(CACHE), "num-clients": 4}))[0]
    federation, dataset = federate(settings)
    before = fingerprint_of_federation(federation), fingerprint_of_dataset(dataset)
    changed: dict[str, Any] = {
        "train": Shares(federation.train.rows[::-1], federation.train.offsets),
        "test": Shares(federation.test.rows, federation.test.offsets // 2),
        "test_from_train": not federation.test_from_train,
        "unseen": ~federation.unseen,
        "labeled": ~federation.labeled,
        "angles": federation.angles + 1,
        "names": np.array([*"abcd"]),
        "server": np.arange(3),
        "validation": Shares.of([np.arange(1)] * 4),
        "noise": Noise(np.ones(4, np.float32), 1),
        "canaries": Canaries(*[np.zeros(1, np.int64)] * 3, np.ones(1, bool)),
    }
    assert changed.keys() == {field.name for field in fields(federation)} - {"notes"}  # words for the user
    found = {fingerprint_of_federation(replace(federation, **{name: value})) for name, value in changed.items()}
    assert len(found | {before[0]}) == len(changed) + 1

    train = dataset.train
    others = [
        replace(train, x=np.concatenate([train.x[:1] + 1, train.x[1:]])),
        replace(train, y=np.concatenate([train.y[:-1], 9 - train.y[-1:]])),
        replace(train, x=train.x[:-1], y=train.y[:-1]),
    ]
    assert len({fingerprint_of_dataset(replace(dataset, train=other)) for other in others} | {before[1]}) == 4
    column = replace(dataset.train, y=dataset.train.y[:, None])  # as numbers are now; they were vectors once
    assert fingerprint_of_dataset(replace(dataset, train=column)) == before[1]
