"""Scales that a description has fitted: those of scikit-learn on all rows, on devices and in predictions, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

import florilegium as fl
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import parse_source
from florilegium.clients.core.export import load_model, spec_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.partitions.device_data import read_device, read_inputs
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.sources.fitted_scales import Fitted, applied
from florilegium.partitions.sources.tables import TableSchema
from florilegium.strategies.statistics.medians import medians
from tests.runs import Runs
from tests.support import settings

KEYS: dict[str, Value] = {
    "partitioner": "natural", "num-clients": 0, "rounds": 1, "label-column": "ill", "duplicates": "warn",
}  # fmt: skip
DESCRIBE: dict[str, Value] = {
    **KEYS, "method": "describe", "missing": "indicator", "describe.by-client": False, "describe.min-count": 0,
}  # fmt: skip
NUMBERS = ("age", "dose")


def _table(n: int = 401) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    table = pd.DataFrame({
        "age": rng.integers(20, 90, n).astype(float), "dose": rng.lognormal(3, 0.9, n),
        "ward": rng.choice(["a", "b", "c"], n, p=[0.2, 0.5, 0.3]), "ill": rng.choice(["no", "yes"], n),
        "owner": rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2]),
    })  # fmt: skip
    table.loc[rng.random(n) < 0.1, "dose"] = np.nan
    table.loc[rng.random(n) < 0.1, "ward"] = None
    return table


def _write(table: pd.DataFrame, folder: Path) -> str:
    for owner, own in table.groupby("owner"):
        (folder / str(owner)).mkdir(parents=True)
        own.drop(columns="owner").to_csv(folder / str(owner) / "train.csv", index=False)
        own.drop(columns="owner").head(6).to_csv(folder / str(owner) / "test.csv", index=False)
    return str(folder)


def _scales(path: Path) -> Fitted:
    return Fitted.model_validate_json((path / "scales.json").read_text())


@pytest.mark.parametrize("secure", [False, True])
def test_they_are_those_of_scikit_learn(tmp_path: Path, secure: bool) -> None:
    table = _table()
    keys: dict[str, Value] = {"secure-aggregation": secure, "dataset": _write(table, tmp_path / "data")}
    fitted = _scales(Runs(tmp_path, DESCRIBE)("run", **keys))
    numbers = table[[*NUMBERS]]
    scaler, imputer = StandardScaler().fit(numbers), SimpleImputer(strategy="median").fit(numbers)
    for name, mean, deviation, median in zip(NUMBERS, scaler.mean_, scaler.scale_, imputer.statistics_, strict=True):
        found = fitted.numbers[name]
        assert (found.mean, found.deviation) == pytest.approx((mean, deviation), rel=1e-6)
        assert found.median == pytest.approx(median, rel=1e-6)
    words = SimpleImputer(strategy="most_frequent").fit(table[["ward"]].fillna(np.nan))
    assert fitted.categories == {"ward": words.statistics_[0]}


def test_small_counts_leave_a_bracket_that_holds_the_median(tmp_path: Path) -> None:
    table = _table()
    data = _write(table, tmp_path / "data")
    path = Runs(tmp_path, {**DESCRIBE, "describe.min-count": 5})("run", dataset=data)
    facts = json.loads((path / "description.json").read_text())["columns"]["dose"]
    assert abs(facts["median"] - table.dose.median()) <= facts["median_error"]
    values = table.dose.dropna()
    near = (values - facts["median"]).abs() <= facts["median_error"] * 1.01
    assert 5 <= near.sum() < 60


def test_training_devices_and_predictions_use_them(tmp_path: Path) -> None:
    """Inputs of a run are those of a pooled imputer and scaler; so are a device's rows, and those of predictions."""
    table = _table()
    data = _write(table, tmp_path / "data")
    described = Runs(tmp_path, DESCRIBE)("described", dataset=data)
    given = resolve(None, [], {"fitted-scales": str(described)})
    text = str(given["fitted-scales"])
    half = table[table.owner != "north"]  # rows whose own scales are others
    own = _write(half, tmp_path / "half")
    keys: dict[str, Value] = {**KEYS, "dataset": own, "missing": "median", "fitted-scales": text}
    numbers = table[[*NUMBERS]]
    scaler, imputer = StandardScaler().fit(numbers), SimpleImputer(strategy="median").fit(numbers)
    expected = scaler.transform(imputer.transform(half[[*NUMBERS]]))
    dataset = load_dataset(settings(**keys))
    order = np.argsort(half.owner.to_numpy(), kind="stable")
    np.testing.assert_allclose(np.asarray(dataset.train.x)[:, :2], expected[order], atol=1e-5)
    words = half.ward.fillna(_scales(described).categories["ward"])
    np.testing.assert_array_equal(np.asarray(dataset.train.x)[:, 2:], pd.get_dummies(words).to_numpy(float)[order])

    path = Runs(tmp_path, {**keys, "method": "fedavg", "model": "linear", "local-epochs": 1})("trained")
    schema = Path(dataset_of(settings(**keys)).folder)
    device = tmp_path / "device"
    device.mkdir()
    half.drop(columns="owner").to_csv(device / "train.csv", index=False)
    half.drop(columns="owner").head(6).to_csv(device / "test.csv", index=False)
    plain = tmp_path / "schema"
    plain.mkdir()
    lines = (schema / "schema.toml").read_text().replace(str(_scales(described).numbers["age"].mean), "1.0")
    (plain / "schema.toml").write_text(lines)  # the device's own copy has another mean
    spec = dataset_of(parse_source({"dataset": str(plain), "fitted-scales": text}))
    np.testing.assert_allclose(read_device(device, spec).train.x[:, :2].numpy(), expected, atol=1e-5)

    folder = Path(fl.Run(path).export(tmp_path / "model", "south"))
    _, card = load_model(folder)
    inputs, _ = read_inputs(device / "train.csv", spec_of(folder, card))
    np.testing.assert_allclose(inputs.x[:, :2].numpy(), expected, atol=1e-5)
    assert card.fitted_scales == text
    assert card.inputs["numbers"]["age"] == pytest.approx([scaler.mean_[0], scaler.scale_[0]], rel=1e-6)
    assert card.inputs["fill"]["dose"] == pytest.approx(imputer.statistics_[1], rel=1e-6)


@pytest.mark.parametrize("text", ["nonsense", "{", '{"numbers": {"age": {"mean": 1, "deviation": 0}}}', '{"other": 1}'])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="fitted-scales: give a run of 'describe'"):
        applied(TableSchema({"age": (0.0, 1.0)}), text)


def test_other_columns_and_other_data_are_refused(tmp_path: Path) -> None:
    text = '{"numbers": {"age": {"mean": 1, "deviation": 2}}}'
    with pytest.raises(ConfigurationError, match="its columns, age, are not those of the dataset"):
        applied(TableSchema({"height": (0.0, 1.0)}), text)
    with pytest.raises(ConfigurationError, match="fitted-scales: it is for tables"):
        dataset_of(settings(dataset="digits", **{"fitted-scales": text}))
    (tmp_path / "empty").mkdir()
    with pytest.raises((ConfigurationError, FileNotFoundError)):
        resolve(None, [], {"fitted-scales": "nowhere", "runs-dir": str(tmp_path / "empty")})


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", range(3))
def test_medians_by_counts(n: int, seed: int) -> None:
    """Of few, equal, and very unequal numbers, those of NumPy to single precision."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([
        rng.normal(size=n), rng.integers(0, 2, n), np.full(n, 3.5), rng.lognormal(0, 6, n), 1e9 + rng.normal(size=n)
    ])  # fmt: skip

    def below(edges: np.ndarray) -> np.ndarray:
        return (x[None] <= edges[:, None]).sum(axis=1).astype(float)

    found, _ = medians(below, np.full(5, float(n)), x.mean(axis=0), x.std(axis=0), 1)
    assert (np.abs(found - np.median(x, axis=0)) <= 1e-7 * x.std(axis=0) + 1e-9 * np.abs(x).mean(axis=0) + 1e-300).all()
