"""Devices that lack columns: descriptions and fits go on without them for these columns alone; others need all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from florilegium.apps.assembly.node_config import own_data, parse_node
from florilegium.apps.settings.configuration import parse_source
from florilegium.common.errors import DataError
from florilegium.common.settings import Value
from florilegium.owner.view import View
from florilegium.partitions.clientdata import CPU, ClientData
from florilegium.partitions.loading import dataset_of
from tests.site import site

SCHEMA = """
label = "ill"
labels = ["no", "yes"]
missing = "indicator"
indicators = ["dose"]

[numbers]
age = [50.0, 10.0]
dose = [20.0, 5.0]
income = [3000.0, 800.0]

[categories]
sex = ["f", "m"]

[dates]
seen = [19800.0, 30.0]

[fill]
age = 50.0
dose = 20.0
income = 3000.0
sex = "f"
seen = 19800.0
"""
OWNERS = ("north", "south", "west")
WITHOUT = {"north": "", "south": 'withhold="income"', "west": ""}


def _rows(number: int, n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    frame = pd.DataFrame({
        "age": rng.integers(20, 80, n).astype(float), "dose": rng.normal(20, 5, n).round(2),
        "income": rng.normal(3000, 800, n).round(), "sex": rng.choice(["f", "m"], n),
        "seen": (pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 60, n), unit="D")).strftime("%Y-%m-%d"),
    })  # fmt: skip
    risk = 0.04 * (frame.age - 50) + 0.0008 * (frame.income - 3000)
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no")
    frame.loc[::9, "dose"] = np.nan
    return frame


def _write(folder: Path) -> dict[str, pd.DataFrame]:
    """Write the schema and each owner's rows; the first eight of each are its test rows, too."""
    (folder / "schema").mkdir(parents=True)
    (folder / "schema" / "schema.toml").write_text(SCHEMA)
    frames = {owner: _rows(number) for number, owner in enumerate(OWNERS)}
    for owner, frame in frames.items():
        (folder / owner).mkdir()
        frame.to_csv(folder / owner / "train.csv", index=False)
        frame.head(8).to_csv(folder / owner / "test.csv", index=False)
    return frames


def _node(folder: Path, owner: str, *more: str) -> str:
    own = [f'data-path="{folder / owner}"', f'client-id="{owner}"', f'state-dir="{folder / "state" / owner}"']
    return " ".join([*own, WITHOUT[owner], *more]).strip()


def _read(folder: Path, owner: str, *, by_column: bool, **node: Value) -> ClientData:
    spec = dataset_of(parse_source({"dataset": str(folder / "schema")}))
    given = {"data-path": str(folder / owner), "client-id": owner, **{k.replace("_", "-"): v for k, v in node.items()}}
    return own_data(
        parse_node(given), spec, CPU, embeddings="", cache_dir=str(folder), duplicates="warn", by_column=by_column
    )


def test_what_an_owner_withholds_is_lacking_or_the_device_takes_no_part(tmp_path: Path) -> None:
    frames = _write(tmp_path)
    data = _read(tmp_path, "south", by_column=True, withhold="income, nothing")
    assert data.terms.lacking == {"income"}
    assert any("column 'income': the owner withholds it" in note for note in data.notes)
    np.testing.assert_allclose(data.train.x[:, 0].numpy() * 10 + 50, frames["south"].age, atol=1e-4)
    assert not data.train.x[:, 2].any()  # the schema's mean, whatever the owner's numbers are
    with pytest.raises(DataError, match="withhold: the owner withholds column 'income', and this run needs all"):
        _read(tmp_path, "south", by_column=False, withhold="income")
    assert not _read(tmp_path, "south", by_column=False, withhold="other").terms.lacking


def test_what_a_policy_leaves_out_is_lacking_as_what_is_withheld(tmp_path: Path) -> None:
    """A copy has only the columns that the owner's `data.columns` names; `withhold` opens no other."""
    frames = _write(tmp_path)
    kept = tuple(name for name in frames["south"].columns if name != "income")
    view = View(tmp_path / "south", kept, (), tmp_path / "view").made()
    data = _read(tmp_path, "south", by_column=True, data_path=str(view))
    assert data.terms.lacking == {"income"}
    assert not data.train.x[:, 2].any()
    with pytest.raises(DataError, match="income"):
        _read(tmp_path, "south", by_column=False, data_path=str(view))
    both = _read(tmp_path, "south", by_column=True, data_path=str(view), withhold="age")
    assert both.terms.lacking == {"income", "age"}


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("age", None, "has none of this name"),
        ("age", "old", "age"),
        ("seen", "31/03/2024", "holds no date"),
        ("sex", "female", "unknown category"),
    ],
)
def test_a_column_that_does_not_fit_the_schema_is_lacking(
    tmp_path: Path, column: str, cells: str | None, said: str
) -> None:
    """Only where a run can do without it; all other columns are read as they are."""
    frames = _write(tmp_path)
    frame = frames["west"].drop(columns=column) if cells is None else frames["west"].assign(**{column: cells})
    frame.to_csv(tmp_path / "west" / "train.csv", index=False)
    data = _read(tmp_path, "west", by_column=True)
    assert data.terms.lacking == {column}
    assert any(said in note for note in data.notes)
    np.testing.assert_allclose(data.train.x[:, 2].numpy() * 800 + 3000, frame.income, atol=1e-3)
    with pytest.raises(DataError):
        _read(tmp_path, "west", by_column=False)


def test_owners_keys_are_checked(tmp_path: Path) -> None:
    _write(tmp_path)
    assert not _read(tmp_path, "west", by_column=True).terms.extremes
    assert _read(tmp_path, "west", by_column=True, extremes=True).terms.extremes
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    assert _read(tmp_path, "west", by_column=True, row_key=str(secret)).terms.row_key == b"0123456789abcdef"
    secret.write_text("short")
    with pytest.raises(DataError, match=r"row-key: .* must hold at least 16 bytes"):
        _read(tmp_path, "west", by_column=True, row_key=str(secret))
    with pytest.raises(DataError, match=r"row-key: .* cannot be read"):
        _read(tmp_path, "west", by_column=True, row_key=str(tmp_path / "none"))


@pytest.mark.deployment
@pytest.mark.long
def test_three_supernodes_of_which_one_withholds_a_column(tmp_path: Path) -> None:
    """A description has its other columns, a fit without the column all rows, and one with it those of the others."""
    frames = _write(tmp_path)
    (tmp_path / "secret").write_text("a secret of the three owners")
    keys: dict[str, Value] = {
        "dataset": str(tmp_path / "schema"), "num-clients": 3, "participation": 1.0, "evaluate-every": 0,
        "start-timeout": 600.0,
    }  # fmt: skip
    fit: dict[str, Value] = {**keys, "method": "glm", "rounds": 20, "model": "linear"}
    with site(tmp_path / "site") as started:
        for owner in OWNERS:
            more = [f'row-key="{tmp_path / "secret"}"', *(["extremes=true"] if owner == "west" else [])]
            started.start_node(owner, config=_node(tmp_path, owner, *more))
        extra: dict[str, Value] = {"describe.extremes": True, "describe.duplicates": True}
        described = started.run("describe", **{**keys, "method": "describe", "rounds": 1, **extra})
        all_rows = started.run("without", **{**fit, "glm.columns": "age,sex"})
        others = started.run("with", **{**fit, "glm.columns": "age,income"})
    found: dict[str, Any] = json.loads((described / "description.json").read_text())
    whole, rest = pd.concat(frames.values()), pd.concat([frames["north"], frames["west"]])
    assert found["rows"] == len(whole)
    assert found["columns"]["age"]["mean"] == pytest.approx(whole.age.mean(), rel=1e-6)
    assert found["columns"]["income"]["mean"] == pytest.approx(rest.income.mean(), rel=1e-6)
    assert found["columns"]["income"]["known"] == len(rest)
    assert found["columns"]["income"]["clients_without"] == 1
    assert "clients_without" not in found["columns"]["age"]
    assert found["by_client"]["south"]["income"]["lacking"]
    assert "client south: column 'income' is not there, is withheld, or does not fit the schema" in found["problems"]
    assert found["columns"]["age"]["max"] == pytest.approx(frames["west"].age.max(), rel=1e-6)
    assert found["columns"]["age"]["extremes_of"] == 1
    assert found["shared_rows"] == {"pairs": 0, "error": pytest.approx(1, abs=1), "keyed": True}
    for path, rows, columns in ((all_rows, whole, ["age", "sex"]), (others, rest, ["age", "income"])):
        design = sm.add_constant(
            rows[columns].assign(**({"sex": rows.sex == "m"} if "sex" in columns else {})).astype(float)
        )
        pooled = sm.Logit((rows.ill == "yes").to_numpy(float), design).fit(disp=0, tol=1e-14)
        fitted = json.loads((path / "summary.json").read_text())["glm"]
        assert fitted["clients"] == (3 if path == all_rows else 2)
        np.testing.assert_allclose([line["coefficient"] for line in fitted["coefficients"]], pooled.params, rtol=1e-5)
    for told in ("summary.json", "failures.jsonl"):
        assert "it lacks column 'income', or its owner withholds it" in (others / told).read_text()
