"""Statistics of three devices with files of their own, one of which may lack a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from safetensors.numpy import load_file

from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.common.settings import Value
from florilegium.privacy.ledger import Ledger
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs

SCHEMA = """
label = "ill"
labels = ["no", "yes"]
task = "binary"

[numbers]
age = [50.0, 10.0]
pressure = [130.0, 20.0]

[categories]
sex = ["f", "m"]
"""
NAMES = "abc"


def _rows(number: int, n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    table = pd.DataFrame({
        "age": rng.integers(20, 80, n), "pressure": rng.integers(100, 180, n), "sex": rng.choice(["f", "m"], n),
    })  # fmt: skip
    return table.assign(ill=np.where(rng.random(n) < 1 / (1 + np.exp(-(table.age - 50) / 10)), "yes", "no"))


def _devices(folder: Path, lacks: str = "") -> list[dict[str, Any]]:
    """Write the schema and each device's files; the device ``lacks`` has no column ``pressure``."""
    (folder / "patients").mkdir()
    (folder / "patients" / "schema.toml").write_text(SCHEMA)
    nodes = []
    for number, name in enumerate(NAMES):
        table = _rows(number).drop(columns=["pressure"] if name == lacks else [])
        (folder / name).mkdir()
        table.to_csv(folder / name / "train.csv", index=False)
        table.head(20).to_csv(folder / name / "test.csv", index=False)
        nodes.append({"client-id": name, "data-path": str(folder / name), "state-dir": str(folder / f"state-{name}")})
    return nodes


def _keys(folder: Path, method: str, clients: int) -> dict[str, Value]:
    return {
        "method": method, "dataset": str(folder / "patients"), "num-clients": clients, "evaluate-every": 0,
        "rounds": 30 if method == "glm" else 1, "start-timeout": 3.0, "roster-timeout": 3.0,
    }  # fmt: skip


def _pooled(numbers: list[int]) -> Any:
    table = pd.concat([_rows(number) for number in numbers])
    design = sm.add_constant(np.column_stack([table.age, table.pressure, table.sex == "m"]).astype(float))
    return sm.Logit((table.ill == "yes").to_numpy(float), design).fit(disp=0, tol=1e-14)


@pytest.mark.parametrize("lacks", ["", "c"])
def test_a_regression_of_devices_is_that_of_their_rows(tmp_path: Path, lacks: str, caplog) -> None:
    """A device without a column of the model is in no sum; log and status name it, and the fit is the others'."""
    nodes = _devices(tmp_path, lacks)
    path = Runs(tmp_path / "runs", _keys(tmp_path, "glm", 3))("run", nodes)
    fit = json.loads((path / "summary.json").read_text())["glm"]
    pooled = _pooled([0, 1] if lacks else [0, 1, 2])
    found = [line["coefficient"] for line in fit["coefficients"]]
    np.testing.assert_allclose(found, pooled.params, rtol=2e-6)  # inputs are encoded in single precision
    assert fit["clients"] == (2 if lacks else 3)
    assert ("it lacks column 'pressure', or its owner withholds it" in caplog.text) is bool(lacks)


@pytest.mark.parametrize("lacks", ["", "c"])
def test_a_description_of_devices(tmp_path: Path, lacks: str) -> None:
    """A device without a column is left out for that column alone."""
    nodes = _devices(tmp_path, lacks)
    path = Runs(tmp_path / "runs", _keys(tmp_path, "describe", 3))("run", nodes)
    found = json.loads((path / "description.json").read_text())
    assert found["rows"] == 600
    assert [*found["by_client"]] == ["a", "b", "c"]
    rows = [_rows(number) for number in range(3)]
    assert found["columns"]["age"]["mean"] == pytest.approx(pd.concat(rows).age.mean(), rel=1e-6)
    pressures = pd.concat(rows[: 2 if lacks else 3]).pressure
    assert found["columns"]["pressure"]["mean"] == pytest.approx(pressures.mean(), rel=1e-6)
    assert found["columns"]["pressure"].get("clients_without", 0) == len(lacks)
    assert (found["by_client"]["c"]["pressure"].get("lacking", False)) is bool(lacks)
    assert found["problems"][:1] == (
        ["client c: column 'pressure' is not there, is withheld, or does not fit the schema"] if lacks else []
    )


def test_a_run_that_waits_for_all_devices_names_the_one_that_cannot(tmp_path: Path) -> None:
    nodes = _devices(tmp_path, "c")
    with pytest.raises(
        RunError, match=r"2 clients are ready, but some nodes were skipped: node 102: .*its log says why"
    ):
        Runs(tmp_path / "runs", _keys(tmp_path, "fedavg", 3))("run", nodes)


@pytest.mark.parametrize("method", ["describe", "glm"])
def test_devices_charge_their_accounts_with_their_own_noise(tmp_path: Path, method: str) -> None:
    """A run of ε = 1.5 spends what an owner allows over all runs, so that a second is refused."""
    nodes = [one | {"max-epsilon": 2.0} for one in _devices(tmp_path)]
    keys = {**_keys(tmp_path, method, 3), f"{method}.privacy-unit": "example", f"{method}.epsilon": 1.5,
            **({"describe.by-client": False} if method == "describe" else {})}  # fmt: skip
    with pytest.raises(RunError, match=r"privacy.unit = 'example'|nodes were skipped"):
        Runs(tmp_path / "runs", keys)("servers", nodes)
    path = Runs(tmp_path / "runs", {**keys, f"{method}.noise": "client"})("own", nodes)
    assert json.loads((path / "summary.json").read_text())["privacy"]["epsilon"] == pytest.approx(1.5, rel=1e-3)
    for name in NAMES:
        state = tmp_path / f"state-{name}"
        (account,) = state.glob("**/privacy.json")
        releases = json.loads(account.read_text())["releases"]
        assert sum(times for _, _, times in releases) == (1 if method == "describe" else 12)
        total = Ledger(account, 1e-6).epsilon()
        assert total == pytest.approx(1.5, rel=2e-3)
        assert json.loads((state / "_privacy" / f"{name}.json").read_text())["releases"] == releases
    with pytest.raises((BudgetSpentError, RunError), match="spent"):
        Runs(tmp_path / "runs", {**keys, f"{method}.noise": "client"})("again", nodes)


def test_trees_of_devices_are_those_of_a_simulation(tmp_path: Path) -> None:
    """Each device keeps the model, with leaves of its own."""
    nodes = _devices(tmp_path)
    keys = _keys(tmp_path, "trees", 3) | {"rounds": 4, "trees.number": 4, "boosting.refit": 0.5}
    path = Runs(tmp_path / "runs", keys)("run", nodes)
    data = tmp_path / "files"
    for name in NAMES:
        (data / name).mkdir(parents=True)
        for part in ("train", "test"):
            (data / name / f"{part}.csv").write_text((tmp_path / name / f"{part}.csv").read_text())
    (data / "schema.toml").write_text(SCHEMA)
    simulated: dict[str, Value] = {"dataset": str(data), "partitioner": "natural", "num-clients": 0}
    other = Runs(tmp_path / "runs", keys | simulated)("other")
    first, second = (read_checkpoint(run).arrays for run in (path, other))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=1e-6)
    kept = [*tmp_path.glob("state-?/**/model.safetensors")]
    assert len(kept) == 3
    leaves = [load_file(file)["trees.leaf"] for file in kept]
    assert all(np.abs(own - first["trees.leaf"]).max() > 1e-3 for own in leaves)


def test_owners_decide_on_extremes_and_share_a_key(tmp_path: Path) -> None:
    """The extremes are those of the device that allows it; the key of hashes is one that the server does not know."""
    nodes, secret = _devices(tmp_path), tmp_path / "secret"
    secret.write_text("a secret of the three owners")
    shared = [one | {"row-key": str(secret)} for one in nodes]
    shared[1] |= {"extremes": True}
    keys = {**_keys(tmp_path, "describe", 3), "describe.extremes": True, "describe.duplicates": True}
    found = json.loads((Runs(tmp_path / "runs", keys)("run", shared) / "description.json").read_text())
    ages = found["columns"]["age"]
    assert (ages["min"], ages["max"]) == pytest.approx((_rows(1).age.min(), _rows(1).age.max()), rel=1e-6)
    assert (ages["extremes_of"], found["shared_rows"]["keyed"]) == (1, True)
    without = json.loads((Runs(tmp_path / "runs", keys)("without", nodes) / "description.json").read_text())
    assert (without["columns"]["age"]["max"], without["shared_rows"]["keyed"]) == (None, False)
