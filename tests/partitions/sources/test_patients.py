"""A table of patients as hospitals have it: dates, missing values, rare categories, weights, columns to leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from florilegium.clients.core.export import load_model, save_model
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.models.scaled import Scaled
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.describing import decisions
from florilegium.partitions.device_data import read_device, read_inputs, read_rows
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.settings import FederationSettings
from tests.support import settings

N = 60


def _frame(seed: int = 1, n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, n).round(1)
    age[::7] = np.nan
    return pd.DataFrame({
        "patient": [f"p{i}" for i in range(n)],
        "hospital": np.where(np.arange(n) % 2, "north", "south"),
        "age": age + np.where(np.arange(n) % 2, 20, 0),
        "pressure": rng.integers(90, 180, n),
        "sex": [None if i % 11 == 0 else "fm"[i % 2] for i in range(n)],
        "admitted": pd.to_datetime("2020-01-15") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        "weight": rng.integers(1, 4, n),
        "label": rng.integers(0, 2, n),
    })  # fmt: skip


def _write(folder: Path, train: pd.DataFrame, test: pd.DataFrame | None = None, **csv: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, frame in (("train", train), ("test", test)):
        if frame is not None:
            frame.to_csv(folder / f"{part}.csv", index=False, **csv)


def _keys(tmp_path: Path, **options: Any) -> FederationSettings:
    given = {
        "dataset": str(tmp_path / "own"),
        "cache_dir": str(tmp_path / "cache"),
        "num_clients": 2,
        "partitioner": "iid",
    }
    return FederationSettings.model_validate(
        {
            name.replace("_", "-"): value
            for name, value in {**given, "drop_columns": "patient,weight", **options}.items()
        }
    )


def _features(tmp_path: Path, part: str = "train", **options: Any) -> tuple[np.ndarray[Any, Any], Any]:
    dataset = load_dataset(_keys(tmp_path, **options))
    split = getattr(dataset, part)
    return np.asarray(split.x), dataset.spec


def test_medians_and_categories_are_those_of_scikit_learn(tmp_path: Path) -> None:
    frame, test = _frame(), _frame(2)
    _write(tmp_path / "own", frame, test)
    for part, rows in (("train", frame), ("test", test)):
        x, spec = _features(tmp_path, part, missing="median")
        numbers = ["age", "pressure"]
        imputer = SimpleImputer(strategy="median").fit(frame[numbers])
        scaler = StandardScaler().fit(frame[numbers].dropna())  # deviations are those of the values that are there
        scaler.mean_[0], scaler.scale_[0] = frame["age"].mean(), frame["age"].std(ddof=0)
        scaler.mean_[1], scaler.scale_[1] = frame["pressure"].mean(), frame["pressure"].std(ddof=0)
        np.testing.assert_allclose(x[:, :2], scaler.transform(imputer.transform(rows[numbers])), atol=1e-4)
        days = (rows["admitted"] - pd.Timestamp("1970-01-01")).dt.days
        trained = (frame["admitted"] - pd.Timestamp("1970-01-01")).dt.days
        np.testing.assert_allclose(x[:, 2], (days - trained.mean()) / trained.std(ddof=0), atol=1e-4)
        often = frame["sex"].mode()[0]
        hot = (
            OneHotEncoder(sparse_output=False).fit(frame[["sex"]].fillna(often)).transform(rows[["sex"]].fillna(often))
        )
        np.testing.assert_array_equal(x[:, 3:5], hot)
        assert spec.shape == (5,)


def test_what_is_missing_is_an_error_a_row_less_or_a_feature(tmp_path: Path) -> None:
    frame = _frame()
    _write(tmp_path / "own", frame)
    with pytest.raises(DataError, match=r"column 'age' has no number in row 0, 9 rows in all.*or set missing"):
        dataset_of(_keys(tmp_path))
    complete = frame.dropna()
    x, spec = _features(tmp_path, missing="drop")
    assert len(x) == len(complete) < N
    said = decisions(spec, str(tmp_path / "cache"))
    assert f"left out: train: {N - len(complete)} of {N} rows dropped, since an input is missing" in said
    x, spec = _features(tmp_path, missing="indicator")
    np.testing.assert_array_equal(x[:, -1], frame["age"].isna())
    assert spec.table is not None
    assert spec.table.indicators == ("age",)
    assert spec.table.categories["sex"] == ("", "f", "m")


def test_dates_are_never_texts(tmp_path: Path) -> None:
    for form, given in (("%d.%m.%Y", ""), ("%Y-%m-%d", ""), ("%d/%m/%Y", ""), ("%m/%d/%y", "%m/%d/%y")):
        frame = _frame()
        frame["admitted"] = frame["admitted"].dt.strftime(form)
        own = tmp_path / form.replace("/", "-")
        _write(own, frame)
        x, spec = _features(
            tmp_path, dataset=str(own), missing="median", date_format=given, date_parts="days,year,week"
        )
        assert spec.kind == "table"
        days = (_frame()["admitted"] - pd.Timestamp("1970-01-01")).dt.days.to_numpy()
        np.testing.assert_allclose(x[:, 2], (days - days.mean()) / days.std(), atol=1e-4)
        np.testing.assert_allclose(x[:, 3], np.sin(2 * np.pi * days / 365.2425), atol=1e-4)
        weekdays = _frame()["admitted"].dt.dayofweek.to_numpy()  # Monday is 0, and day 0 of 1970 was a Thursday
        np.testing.assert_allclose(x[:, 6], np.cos(2 * np.pi * (weekdays - 3) / 7), atol=1e-4)


def test_dates_that_may_be_read_in_two_ways(tmp_path: Path) -> None:
    frame = _frame()
    frame["admitted"] = [f"0{1 + i % 9}/0{1 + i % 7}/2021" for i in range(N)]
    _write(tmp_path / "own", frame)
    with pytest.raises(ConfigurationError, match=r"%d/%m/%Y and %m/%d/%Y both fit: name theirs with key date-format"):
        dataset_of(_keys(tmp_path, missing="median"))
    _, spec = _features(tmp_path, missing="median", date_format="%m/%d/%Y")
    assert spec.table is not None
    assert spec.table.date_format == "%m/%d/%Y"


def test_a_name_among_dates_and_numbers_is_no_text_to_learn_from(tmp_path: Path) -> None:
    _write(tmp_path / "own", _frame())
    with pytest.raises(ConfigurationError, match="a text among columns of a table"):
        dataset_of(_keys(tmp_path, drop_columns="", missing="median"))
    _, spec = _features(tmp_path, input_columns="age, pressure", drop_columns="", missing="median")
    assert spec.table is not None
    assert spec.table.columns == ("age", "pressure")


def test_categories_that_only_a_test_row_has_are_named_and_zero(tmp_path: Path) -> None:
    test = _frame(2)
    test.loc[3, "sex"] = "x"
    _write(tmp_path / "own", _frame(), test)
    x, spec = _features(tmp_path, "test", missing="median")
    np.testing.assert_array_equal(x[3, 3:5], [0, 0])
    assert any("1 rows have categories of column 'sex' that no training row has (x)" in line
               for line in decisions(spec, str(tmp_path / "cache")))  # fmt: skip


def test_weights_reach_the_training_examples(tmp_path: Path) -> None:
    frame = _frame()
    _write(tmp_path / "own", frame)
    keys = _keys(tmp_path, missing="median", weight_column="weight", drop_columns="patient")
    federation, dataset = federate(keys)
    data = simulated(federation, dataset, 1)
    assert data.train.weights is not None
    rows = federation.train[1]
    np.testing.assert_array_equal(data.train.weights, frame["weight"].to_numpy()[rows])
    assert dataset.spec.table is not None
    assert "weight" not in dataset.spec.table.columns
    for bad, said in ((-1, r"weights of at least 0, not all 0 \(found: -1 in row 2\)"), (np.nan, "no number in row 2")):
        wrong = frame.astype({"weight": float})
        wrong.loc[2, "weight"] = bad
        _write(tmp_path / f"bad{bad}", wrong)
        with pytest.raises(DataError, match=said):
            dataset_of(_keys(tmp_path, dataset=str(tmp_path / f"bad{bad}"), missing="median", weight_column="weight",
                             drop_columns="patient"))  # fmt: skip
    _write(tmp_path / "none", frame.assign(weight=0))
    with pytest.raises(DataError, match="found: 0 in all rows"):
        dataset_of(_keys(tmp_path, dataset=str(tmp_path / "none"), missing="median", weight_column="weight",
                         drop_columns="patient"))  # fmt: skip


def test_each_client_standardises_and_fills_in_by_its_own_rows(tmp_path: Path) -> None:
    frame = _frame()
    _write(tmp_path / "own", frame)
    keys = _keys(tmp_path, missing="median", standardise="client", partitioner="natural", num_clients=0)
    federation, dataset = federate(keys)
    for client, name in enumerate(federation.names):
        data, own = simulated(federation, dataset, client), frame[frame["hospital"] == name].reset_index(drop=True)
        assert data.scaling is not None
        place = {row: number for number, row in enumerate(frame.index[frame["hospital"] == name])}
        train = own.loc[[place[row] for row in federation.train[client]]]
        filled = train["age"].fillna(train["age"].median())
        np.testing.assert_allclose(data.train.x[:, 0], (filled - filled.mean()) / filled.std(ddof=0), atol=1e-4)
        test = own.loc[[place[row] for row in federation.test[client]]]["age"].fillna(train["age"].median())
        np.testing.assert_allclose(data.test.x[:, 0], (test - filled.mean()) / filled.std(ddof=0), atol=1e-4)
        assert not data.train.x.isnan().any()
        assert data.train.x[:, 3:].unique().tolist() == [0.0, 1.0]  # categories are no numbers


def test_numbers_as_they_are(tmp_path: Path) -> None:
    frame = _frame()
    _write(tmp_path / "own", frame)
    x, _ = _features(tmp_path, missing="median", standardise="none")
    np.testing.assert_allclose(x[:, 1], frame["pressure"])


def test_a_device_reads_the_same_features(tmp_path: Path) -> None:
    """A device with raw rows: missing numbers, dates as text, a category of its own in test rows."""
    _write(tmp_path / "own", _frame())
    keys = _keys(tmp_path, missing="indicator", standardise="client", weight_column="weight", drop_columns="patient")
    spec, whole = dataset_of(keys), load_dataset(keys)
    site, frame = tmp_path / "site", _frame()
    test = _frame(3)
    test.loc[0, "sex"] = "x"
    _write(site, frame, test, na_rep="?")
    data = read_device(site, spec)
    np.testing.assert_allclose(data.train.x, data.scaling.apply(torch.from_numpy(np.asarray(whole.train.x))), atol=1e-6)
    assert data.train.weights is not None
    np.testing.assert_array_equal(data.train.weights, frame["weight"])
    assert any("(x)" in note for note in data.notes)


def test_a_kept_model_predicts_raw_rows_with_missing_values(tmp_path: Path) -> None:
    _write(tmp_path / "own", _frame())
    options = {"missing": "median", "standardise": "client", "drop-columns": "patient,weight", "model": "linear"}
    keys = settings(dataset=str(tmp_path / "own"), **{"cache-dir": str(tmp_path / "cache")}, **options)
    spec = dataset_of(keys)
    data = read_device(_site(tmp_path), spec)
    assert data.scaling is not None
    network = network_for(spec, NetworkSettings(model="linear"), 1)
    scaled = Scaled(network, data.scaling.fill, data.scaling.mean, data.scaling.std)
    model, card = load_model(save_model(tmp_path / "model", scaled, "0", "run", keys))
    assert (card.scaled, card.standardise) == (True, "client")
    rows = _frame(5, 6).drop(columns=["label", "patient", "weight", "hospital"])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    x = read_inputs(tmp_path / "rows.csv", spec)[0].x
    expected = network(data.scaling.apply(x))
    torch.testing.assert_close(model(x), expected.detach())
    assert not expected.isnan().any()


def _site(tmp_path: Path) -> Path:
    _write(tmp_path / "site", _frame(4))
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input_columns": "age,label"}, "input-columns: 'label' is the label"),
        ({"drop_columns": "label"}, "drop-columns: 'label' is the label"),
        ({"weight_column": "pressure", "input_columns": "pressure"}, "'pressure' is the weight"),
        ({"input_columns": "age,agee"}, "input-columns: 'agee' is not a column"),
        ({"input_columns": "age", "drop_columns": "age"}, "'age' is also an input column"),
        ({"input_columns": "age", "input_column": "age"}, "input-column names inputs, too"),
    ],
)
def test_columns_that_contradict_each_other(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    _write(tmp_path / "own", _frame())
    with pytest.raises(ConfigurationError, match=said):
        dataset_of(_keys(tmp_path, missing="median", **options))


def test_infinite_numbers_and_too_many_categories(tmp_path: Path) -> None:
    frame = _frame()
    frame.loc[4, "age"] = np.inf
    _write(tmp_path / "own", frame)
    said = r"column 'age' has no number in row 4, 1 rows in all.*row 4 is row 5 of .*train\.csv.* with input-columns$"
    with pytest.raises(DataError, match=said):  # rows are counted with those that miss a value
        dataset_of(_keys(tmp_path, missing="median"))
    count = np.arange(20_002)
    _write(tmp_path / "many", pd.DataFrame({"code": [f"c{i}" for i in count], "n": count, "label": count % 2}))
    with pytest.raises(DataError, match=r"column 'code' has 20002 categories, and at most 10000"):
        dataset_of(_keys(tmp_path, dataset=str(tmp_path / "many"), drop_columns="", input_columns="code,n"))


def test_one_hospital_may_be_left_out_of_training(tmp_path: Path) -> None:
    _write(tmp_path / "own", _frame())
    keys = {"missing": "median", "partitioner": "natural", "num_clients": 0}
    federation, _ = federate(_keys(tmp_path, unseen_clients="north", **keys))
    assert federation.unseen.tolist() == [name == "north" for name in federation.names]
    assert federate(_keys(tmp_path, unseen_clients="1", **keys))[0].unseen.tolist() == [False, True]
    with pytest.raises(ConfigurationError, match="there is no client 'nort'; did you mean 'north'"):
        federate(_keys(tmp_path, unseen_clients="nort", **keys))
    with pytest.raises(ConfigurationError, match="no client is left to train on"):
        federate(_keys(tmp_path, unseen_clients="north,south", **keys))


def test_impossible_dates_versions_and_time_zones(tmp_path: Path) -> None:
    frame = _frame()
    frame["admitted"] = ["31.02.2021"] + ["01.03.2021"] * (N - 1)
    _write(tmp_path / "february", frame)
    with pytest.raises(ConfigurationError, match="no known format fits all of them"):
        dataset_of(_keys(tmp_path, dataset=str(tmp_path / "february"), missing="median"))
    frame["admitted"] = ["1.2.3", "1.10.4"] * (N // 2)
    _write(tmp_path / "versions", frame)
    spec = dataset_of(_keys(tmp_path, dataset=str(tmp_path / "versions"), missing="median"))
    assert spec.table is not None
    assert spec.table.categories["admitted"] == ("1.10.4", "1.2.3")
    frame["admitted"] = [f"2024-03-{1 + i % 28:02d}T01:30:00+02:00" for i in range(N)]
    _write(tmp_path / "zones", frame)
    x, _ = _features(tmp_path, dataset=str(tmp_path / "zones"), missing="median")
    days = pd.to_datetime(frame["admitted"], utc=True)
    exact = (days - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(x[:, 2], (exact - exact.mean()) / exact.std(ddof=0), atol=1e-4)


def test_held_out_patients_are_not_in_the_clients_scales(tmp_path: Path) -> None:
    _write(tmp_path / "own", _frame())
    federation, dataset = federate(_keys(tmp_path, missing="median", standardise="client"))
    data = simulated(federation, dataset, 0).hold_back(0.3, torch.Generator().manual_seed(1), dataset.spec.learned)
    assert len(data.validation)
    assert float(data.train.x[:, 1].mean()) == pytest.approx(0, abs=1e-5)
    assert float(data.train.x[:, 1].std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(data.validation.x[:, 1].mean())) > 1e-3


def test_rows_to_predict_need_no_targets(tmp_path: Path) -> None:
    """Placeholders of times, which would have to be above 0, are not checked."""
    frame = _frame().rename(columns={"label": "event"})
    frame["time"] = np.arange(1.0, N + 1)
    _write(tmp_path / "own", frame)
    keys = _keys(tmp_path, missing="median", label_column="time+event", task="survival")
    spec = dataset_of(keys)
    frame.drop(columns=["time", "event"]).to_csv(tmp_path / "rows.csv", index=False)
    assert len(read_inputs(tmp_path / "rows.csv", spec)[0]) == N
    frame.drop(columns=["time", "event"]).to_csv(_site(tmp_path) / "train.csv", index=False)
    assert len(read_device(tmp_path / "site", spec, labeled=False).train) == N
    rows = frame[[*spec.table.columns]].astype({"admitted": object}).to_dict("list")  # with NaN and NaT among texts
    assert read_rows(rows, spec).x.shape == (N, spec.table.features)


def test_dates_of_arrows_types_stand_beside_dates_in_text(tmp_path: Path) -> None:
    frame = _frame()
    frame["left"] = (frame["admitted"] + pd.Timedelta(days=9)).dt.strftime("%d.%m.%Y")
    (tmp_path / "own").mkdir()
    frame.to_parquet(tmp_path / "own" / "train.parquet")
    x, spec = _features(tmp_path, missing="median")
    assert spec.table is not None
    assert [*spec.table.dates] == ["admitted", "left"]
    np.testing.assert_allclose(x[:, 2], x[:, 3], atol=1e-4)
