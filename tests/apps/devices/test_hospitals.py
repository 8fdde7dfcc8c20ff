"""Four hospitals with raw files of their own: one schema, own names and scaling, predictions of rows with gaps."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.devices.stored_runs import kept
from florilegium.apps.settings.configuration import parse_source
from florilegium.clients.core.export import load_model
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.models.scaled import SCALING
from florilegium.partitions.device_data import read_device, read_device_schema
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.exchange.flower_inside import node_pairs
from florilegium.strategies.folder.metrics_file import read_evaluations
from tests.runs import Runs
from tests.site import site

COLUMNS = ("age", "sex", "cp", "trestbps", "fbs", "oldpeak", "ca", "target")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SCHEMA = """
label = "target"
labels = [0, 1, 2, 3, 4]
task = "binary"
missing = "median"

[numbers]
age = [54.0, 9.0]
trestbps = [132.0, 18.0]
oldpeak = [1.0, 1.1]
ca = [0.7, 0.9]

[categories]
sex = ["0", "1"]
cp = ["1", "2", "3", "4"]

[fill]
age = 54.0
trestbps = 130.0
oldpeak = 0.8
ca = 0.0
sex = "1"
cp = "4"
"""
KEYS: dict[str, Value] = {
    "positive": "1,2,3,4", "standardise": "client", "model": "linear", "method": "ditto", "num-clients": 4,
    "rounds": 2, "participation": 1.0, "local-epochs": 1, "batch-size": 8, "evaluate-every": 0,
    "metrics": "accuracy,auroc", "start-timeout": 600.0,
}  # fmt: skip


def _rows(number: int, n: int = 40) -> pd.DataFrame:
    """Return a hospital's rows; the third has no value of ``ca`` at all."""
    rng = np.random.default_rng(number)
    frame = pd.DataFrame({
        "age": rng.integers(30, 75, n).astype(float), "sex": rng.integers(0, 2, n), "cp": rng.integers(1, 5, n),
        "trestbps": rng.integers(95, 180, n).astype(float), "fbs": rng.integers(0, 2, n),
        "oldpeak": rng.integers(0, 40, n) / 10, "ca": rng.integers(0, 4, n).astype(float),
        "target": rng.integers(0, 5, n),
    })  # fmt: skip
    frame.loc[::6, "trestbps"] = np.nan
    frame.loc[:: 1 if number == 2 else 3, "ca"] = np.nan
    return frame


def _text(frame: pd.DataFrame, number: int, *, header: bool) -> str:
    """Return rows as hospitals wrote them: codes as 1.0 in the first, "?", blanks or nothing for missing values."""
    gap = ("?", " ?", "", " ")[number]
    cells = frame.astype(float) if number == 0 else frame
    lines = [",".join(gap if value != value else _cell(value, name, number) for name, value in row.items())
             for row in cells.astype(object).to_dict("records")]  # fmt: skip
    return "\n".join([",".join(frame.columns), *lines] if header else lines) + "\n"


def _cell(value: float, name: str, number: int) -> str:
    return str(value) if number == 0 and name != "target" else f"{value:g}"


def _write(folder: Path) -> None:
    (folder / "heart").mkdir()
    (folder / "heart" / "schema.toml").write_text(SCHEMA)
    for number, name in enumerate(HOSPITALS):
        file = folder / f"processed.{name}.data"
        file.write_text(_text(_rows(number), number, header=number == 1))
    (folder / "names.toml").write_text(f"names = {[*COLUMNS]}\n")


def _node(folder: Path, name: str) -> str:
    return (
        f'data-path="{folder}/processed.{name}.data" schema="{folder}/names.toml" client-id="{name}" '
        f'state-dir="{folder}/state"'
    )


def _call(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.stdout


def _check(folder: Path, name: str, *keys: str) -> str:
    given = [word for key in keys for word in ("--set", key)]
    return _call("device", "check", _node(folder, name), "--dataset", folder / "heart", *given)


def test_a_raw_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Codes written as 1 or 1.0, "?" and blanks for missing values, with and without a line of names."""
    _write(tmp_path)
    keys = parse_source({"dataset": str(tmp_path / "heart"), "positive": "1,2,3,4", "standardise": "client"})
    for number, name in enumerate(HOSPITALS):
        schema = read_device_schema(tmp_path / "names.toml")
        data = read_device(tmp_path / f"processed.{name}.data", dataset_of(keys), schema=schema)
        frame, scaling = _rows(number), data.scaling
        assert scaling is not None
        read = torch.cat([data.train.x, data.test.x]) * scaling.std + scaling.mean  # as in the schema's units
        ages = (frame["age"] - 54.0) / 9.0
        assert sorted(read[:, 0].round(decimals=4).tolist()) == pytest.approx(sorted(ages), abs=1e-3)
        assert read[:, 4:].sum(dim=0).tolist() == pytest.approx([
            *((frame["sex"] == code).sum() for code in (0, 1)), *((frame["cp"] == code).sum() for code in (1, 2, 3, 4))
        ], abs=1e-3)  # fmt: skip
        if name == "switzerland":  # it has no number of vessels at all
            assert not data.train.x[:, 3].any()
        assert sorted(torch.cat([data.train.y, data.test.y]).tolist()) == sorted((frame["target"] > 0).astype(int))
        assert torch.cat([data.train.x, data.test.x]).isfinite().all()


def test_each_hospital_can_check_its_file(tmp_path: Path) -> None:
    _write(tmp_path)
    for number, name in enumerate(HOSPITALS):
        words = _check(tmp_path, name, "positive=1,2,3,4", "standardise=client").split()
        assert words[0] == f"{name}:"
        assert int(words[1]) + int(words[4]) == len(_rows(number))
        assert int(words[7]) + int(words[9]) == (_rows(number)["target"] > 0).sum()
    for wrong, said in (
        ("positive=7", "there is no class '7'; the data have 0, 1, 2, 3, 4"),
        ("positivo=1", "positivo: no key that says what the data are; did you mean 'positive'"),
        ("missing=maybe", r"missing: input should be 'refuse'.*\(found: 'maybe'\)"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            _check(tmp_path, "va", wrong)
    with pytest.raises(ConfigurationError, match="name the positive ones by key positive"):
        _check(tmp_path, "va")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("", r"in its first line, which is .*If it has no line of names, write names = \[...\]"),
        ("names = ['age', 'sex']", r"has 8 columns, and 2 are named: age, sex"),
        (f"names = {[*COLUMNS[:-2], 'age', 'target']}", "has 2 columns 'age'"),
        (f"names = {[*COLUMNS[:-2], 'vessels', 'target']}", "column 'ca' is missing"),
    ],
)
def test_names_that_do_not_fit_the_file(names: str, said: str, tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "names.toml").write_text(names)
    with pytest.raises(DataError, match=said):
        _check(tmp_path, "va", "positive=1,2,3,4")


def test_a_cell_that_is_no_number_is_named_with_its_row(tmp_path: Path) -> None:
    _write(tmp_path)
    file = tmp_path / "processed.va.data"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], lines[3].replace(",", ",x", 3), *lines[4:]]))
    with pytest.raises(DataError, match=r"column 'trestbps' holds something that is no number.* 'x"):
        _check(tmp_path, "va", "positive=1,2,3,4")


def test_the_federation_is_counted_by_what_is_learned(tmp_path: Path) -> None:
    """Not by the classes of the file: five of a binary task, and none of times."""
    (tmp_path / "own").mkdir()
    for number, name in enumerate(HOSPITALS):
        _rows(number).drop(columns="ca").to_csv(tmp_path / "own" / f"{name}.csv", index=False)
    keys: dict[str, Any] = {
        "dataset": str(tmp_path / "own"), "partitioner": "natural", "num_clients": 0, "missing": "median",
        "cache_dir": str(tmp_path / "cache"),
    }  # fmt: skip
    binary = {"label_column": "target", "task": "binary", "positive": "1,2,3,4"}
    counts = fl.partition(**keys, **binary).counts
    assert [*counts.columns] == [0, "positive"]
    assert counts.to_numpy().sum() == 4 * 32
    for given, columns in ((binary, ["0", "positive"]), ({"label_column": "age", "task": "regression"}, [])):
        words = [f"{key.replace('_', '-')}={value}" for key, value in {**keys, **given}.items()]
        said = _call("partition", *(word for pair in words for word in ("--set", pair)))
        head = next(line for line in said.splitlines() if "client" in line and "train" in line)
        assert head.replace("│", " ").replace("┃", " ").split() == [
            "client",
            "name",
            "group",
            "train",
            "test",
            *columns,
        ]


def _predicted(folder: Path, run: str, name: str, file: Path) -> list[tuple[str, float]]:
    said = _call(
        "device", "predict", run, file, "--state-dir", folder / "state", "--client", name,
        "--schema", folder / "names.toml",
    )  # fmt: skip
    return [(row["class"], float(row["probability"])) for row in csv.DictReader(io.StringIO(said))]


def _assert_predicts_raw_rows(folder: Path, run: str) -> None:
    """Check that each hospital's own model fills in, scales and predicts rows with gaps, with and without targets."""
    for number, name in enumerate(HOSPITALS):
        model, card = load_model(next(one.folder for one in kept(folder / "state", run, name)))
        assert (card.client, card.scaled) == (name, True)
        frame = _rows(number + 10, 6)
        found = []
        for part in (frame, frame.drop(columns="target")):
            rows = folder / f"new-{name}.data"
            rows.write_text(_text(part, number, header=False))
            found.append(_predicted(folder, run, name, rows))
        assert found[0] == found[1]
        # The same by hand: the model's own medians, means and deviations stand before its only layer.
        numbers = np.column_stack([
            (frame[column] - mean) / std
            for column, mean, std in (("age", 54, 9), ("trestbps", 132, 18), ("oldpeak", 1, 1.1), ("ca", 0.7, 0.9))
        ])  # fmt: skip
        codes = [frame["sex"] == code for code in (0, 1)] + [frame["cp"] == code for code in (1, 2, 3, 4)]
        raw = torch.from_numpy(np.column_stack([numbers, *codes])).float()
        state = model.state_dict()
        fill, mean, std = (state[part] for part in SCALING)
        x = (torch.where(raw.isnan(), fill, raw) - mean) / std
        weight, bias = (next(value for key, value in state.items() if key.endswith(end)) for end in ("weight", "bias"))
        expected = (x @ weight.T + bias).sigmoid().flatten()
        assert [probability for _, probability in found[0]] == pytest.approx(expected.tolist(), abs=1e-4)
        assert [word for word, _ in found[0]] == ["positive" if p > 0.5 else "0" for p in expected]


def test_the_run_of_four_hospitals(tmp_path: Path) -> None:
    _write(tmp_path)
    nodes = [node_pairs(_node(tmp_path, name)) for name in HOSPITALS]
    run = Runs(tmp_path / "runs", {**KEYS, "dataset": str(tmp_path / "heart")})("heart", nodes=nodes)
    (*_, last) = read_evaluations(run)
    assert 0 <= last["seen"]["auroc"] <= 1
    _assert_predicts_raw_rows(tmp_path, "heart")


@pytest.mark.deployment
def test_four_supernodes_with_their_raw_files(tmp_path: Path) -> None:
    _write(tmp_path)
    with site(tmp_path) as started:
        for name in HOSPITALS:
            started.start_node(name, config=_node(tmp_path, name))
        started.run("heart", **{**KEYS, "dataset": str(tmp_path / "heart"), "rounds": 1})
    _assert_predicts_raw_rows(tmp_path, "heart")
