"""Descriptions of tables as runs: equal to pandas on all rows, nothing small leaves a client, noise, what is wrong."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.models.statistics.suppression import HIDDEN
from florilegium.strategies.statistics.description import jensen_shannon, quantiles, wasserstein
from tests.runs import Runs, vanishing
from tests.support import CACHE

KEYS: dict[str, Value] = {
    "method": "describe", "partitioner": "natural", "num-clients": 0, "rounds": 1, "missing": "indicator",
    "label-column": "ill", "duplicates": "warn",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _table(n: int = 900) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    owners = rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    table = pd.DataFrame({
        "age": rng.integers(20, 90, n).astype(float),
        "dose": rng.lognormal(3, 0.5, n).round(4),
        "sex": rng.choice(["f", "m"], n),
        "ward": rng.choice(["a", "b", "c"], n, p=[0.6, 0.38, 0.02]),
        "ill": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
    })  # fmt: skip
    table.loc[rng.random(n) < 0.1, "dose"] = np.nan
    table["owner"] = owners
    return table


def _write(table: pd.DataFrame, folder: Path) -> str:
    """Write a folder for each owner, with its training rows, and the first of them as its test rows."""
    for owner, own in table.groupby("owner"):
        (folder / str(owner)).mkdir(parents=True)
        own.drop(columns="owner").to_csv(folder / str(owner) / "train.csv", index=False)
        own.drop(columns="owner").head(6).to_csv(folder / str(owner) / "test.csv", index=False)
    return str(folder)


def _found(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "description.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("by_client", [False, True])
@pytest.mark.parametrize("after", range(4))
def test_a_client_that_is_lost_on_the_way_is_in_no_figure(
    run: Runs, tmp_path: Path, after: int, by_client: bool
) -> None:
    """Sums of several exchanges go together only if they are of the same clients: the others are described anew."""
    table, lose = _table(), vanishing("1", after)
    keys: dict[str, Value] = {"describe.min-count": 0, "describe.by-client": by_client, "min-success": 0.5}
    found = _found(run("lost", nodes=3, intercept=lose, dataset=_write(table, tmp_path / "data"), **keys))
    rest = table[table["owner"] != "south"]
    assert (found["clients"], found["rows"]) == (2, len(rest))
    for name in ("age", "dose"):
        assert found["columns"][name]["deviation"] == pytest.approx(rest[name].std(), rel=1e-6)
    assert found["columns"]["sex"]["counts"] == rest["sex"].value_counts().to_dict()
    if by_client:
        assert [*found["by_client"]] == ["north", "west"]
        means = {client: own["age"]["mean"] for client, own in found["by_client"].items()}
        assert means == pytest.approx(rest.groupby("owner")["age"].mean().to_dict())


@pytest.mark.parametrize("secure", [False, True])
def test_all_rows_together_are_as_pandas_has_them(run: Runs, tmp_path: Path, secure: bool) -> None:
    table = _table()
    keys: dict[str, Value] = {"secure-aggregation": True, "describe.by-client": False} if secure else {}
    path = run("all", dataset=_write(table, tmp_path / "data"), **keys, **{"describe.min-count": 0})
    found, columns = _found(path), _found(path)["columns"]
    assert found["rows"] == 900
    assert ("by_client" in found) is not secure
    for name in ("age", "dose"):
        facts, values = columns[name], table[name].dropna()
        assert facts["known"] == len(values)
        assert facts["missing"] == table[name].isna().sum()
        assert facts["mean"] == pytest.approx(values.mean(), rel=1e-6)  # inputs are encoded in single precision
        assert facts["deviation"] == pytest.approx(values.std(), rel=1e-6)
        for q, value in facts["quantiles"].items():
            if value is not None:
                assert abs(value - values.quantile(float(q))) <= facts["quantile_error"]
        edges = np.array([-np.inf, *facts["edges"], np.inf])
        assert np.abs(np.array(facts["counts"]) - np.histogram(values, edges)[0]).max() <= 1
    for name in ("sex", "ward", "ill"):
        assert columns[name]["counts"] == table[name].value_counts().to_dict()
    correlation = table[["age", "dose"]].corr().iloc[0, 1]
    assert found["correlations"]["matrix"][0][1] == pytest.approx(correlation, abs=0.02)  # of one mean for all pairs
    text = (path / "description.html").read_text(encoding="utf-8")
    assert all(f'<th role="rowheader" scope="row">{name}</th>' in text for name in columns)
    for owner, rows in () if secure else table.groupby("owner"):
        (line,) = re.findall(f'scope="row">{owner}</th>(.*?)</tr>', text.partition("How far each")[0])
        assert f">{rows.age.mean():.4g} ± {rows.age.std(ddof=0):.4g}</td>" in line
        most = rows.sex.value_counts(normalize=True)
        assert f">{most.index[0]} {most.iloc[0]:.0%}</td>" in line


def test_no_small_count_leaves_a_client(run: Runs, tmp_path: Path) -> None:
    """No count of 1 to 4 is in a message; what is hidden there is hidden in the total, too."""
    table = _table()
    table.loc[table.index[(table.owner == "west") & (table.ward == "c")][3:], "ward"] = "a"
    path = run("hidden", dataset=_write(table, tmp_path / "data"))
    seen = 0
    for message in run.grid.received:
        if "outcome" not in message.content:
            continue
        cells = Reply.unpack(message.content).arrays.get("cells")
        if cells is not None:
            seen += cells.shape[0]
            assert not ((cells > 0) & (cells < 5)).any()
            assert (cells == HIDDEN).any()
    assert seen == 3
    found = _found(path)
    assert (table[table.owner == "west"].ward == "c").sum() == 3
    west = found["by_client"]["west"]["ward"]
    assert west["counts"].count(None) + (west["missing"] is None) >= 2
    assert found["columns"]["ward"]["counts"]["c"] is None


def test_sums_of_two_values_give_no_count_away(run: Runs, tmp_path: Path) -> None:
    """The mean of a column of 0 and 1, times the rows, is the number of ones; a client with few keeps it."""
    table = _table()
    table["flag"] = (np.arange(900) % 3 == 0).astype(float)
    west = table.index[table.owner == "west"]
    table.loc[west, "flag"] = 0.0
    table.loc[west[:2], "flag"] = 1.0
    path = run("flag", dataset=_write(table, tmp_path / "data"))
    facts = _found(path)["columns"].get("flag")
    if facts is None or facts["kind"] == "categories":
        pytest.fail("the column is no number, and this test shows nothing")
    others = table[table.owner != "west"].flag
    assert facts["known"] == len(others)
    assert facts["mean"] == pytest.approx(others.mean(), rel=1e-6)


def test_values_whose_sums_a_client_hides_are_no_missing_ones(run: Runs, tmp_path: Path) -> None:
    """A client of which few rows lack a value keeps its figures; page and JSON say of how many clients they are."""
    table = _table()
    table["dose"] = table.dose.fillna(20.0)
    table.loc[table.index[table.owner == "west"][:2], "dose"] = np.nan
    path = run("hiding", dataset=_write(table, tmp_path / "data"))
    found, others = _found(path), table[table.owner != "west"]
    facts = found["columns"]["dose"]
    assert (facts["known"], facts["known_of"], facts["clients_hiding"]) == (len(others), 2, 1)
    assert facts["mean"] == pytest.approx(others.dose.mean(), rel=1e-6)
    assert found["by_client"]["west"]["dose"]["hidden"]
    assert "hidden" not in found["by_client"]["south"]["dose"]
    assert (found["columns"]["age"]["known"], found["columns"]["age"]["known_of"]) == (900, 3)
    assert "clients_hiding" not in found["columns"]["age"]
    text = (path / "description.html").read_text(encoding="utf-8")
    assert f">{len(others)} in 2 of 3 clients</td>" in text
    assert "hide their figures" in text
    assert ">900</td>" in text
    assert "<title>below " in text


@pytest.mark.parametrize("missing", [3, 40])
def test_missing_values_do_not_follow_from_those_that_are_known(run: Runs, tmp_path: Path, missing: int) -> None:
    """If few rows of all clients lack a value, their number is hidden, and that of known values with it."""
    table = _table()
    table["dose"] = np.random.default_rng(3).normal(20, 5, 900)
    table.loc[table.index[::20][:missing], "dose"] = np.nan
    path = run("few", dataset=_write(table, tmp_path / "data"), **{"describe.by-client": False})
    facts = _found(path)["columns"]["dose"]
    assert facts["mean"] == pytest.approx(table.dose.mean(), rel=1e-6)
    shown = (None, None) if missing == 3 else (40, 860)
    assert (facts["missing"], facts["known"]) == shown
    if missing == 40:  # what is hidden holds more than a small count, since its sum follows from the known values
        assert None in facts["counts"]
        assert 860 - sum(count or 0 for count in facts["counts"]) >= 5


def test_what_is_hidden_is_no_difference(run: Runs, tmp_path: Path) -> None:
    """Clients with rows of one distribution do not differ because a small one hides more of its counts."""
    rng = np.random.default_rng(5)
    sizes = {"north": 400, "south": 300, "west": 30}
    table = pd.concat([
        pd.DataFrame({
            "age": rng.normal(50, 10, n), "ward": rng.choice(["a", "b", "c"], n, p=[0.1, 0.6, 0.3]),
            "ill": rng.choice(["no", "yes"], n), "owner": owner,
        }) for owner, n in sizes.items()
    ], ignore_index=True)  # fmt: skip
    table.loc[table.owner == "west", "ward"] = ["a"] * 2 + ["b"] * 17 + ["c"] * 11
    found = _found(run("alike", dataset=_write(table, tmp_path / "data")))
    assert None in found["by_client"]["west"]["ward"]["counts"]
    west = jensen_shannon(*(
        np.array([own.ward.isin(["a", "b"]).sum(), (own.ward == "c").sum()], float)
        for own in (table[table.owner == "west"], table[table.owner != "west"])
    ))  # fmt: skip
    assert found["by_client"]["west"]["ward"]["divergence"] == pytest.approx(west, abs=1e-9)
    assert [found["by_client"][name]["age"]["divergence"] for name in sizes] == [
        pytest.approx(0.02, abs=0.02), pytest.approx(0.02, abs=0.02), None
    ]  # fmt: skip
    assert found["problems"] == []
    table.loc[table.owner == "west", "age"] *= 12  # its histogram is hidden, and its mean tells
    found = _found(run("months", dataset=_write(table, tmp_path / "months")))
    assert found["by_client"]["west"]["age"]["divergence"] is None
    assert "client west: column 'age' differs" in found["problems"][0]
    assert "months and years" in found["problems"][0]


@pytest.mark.parametrize("noise", ["server", "client"])
def test_noise_is_told_and_covers(run: Runs, tmp_path: Path, noise: str) -> None:
    table = _table()
    data = _write(table, tmp_path / "data")
    keys: dict[str, Value] = {
        "describe.by-client": False,
        "describe.privacy-unit": "example",
        "describe.epsilon": 2.0,
        "describe.noise": noise,
    }
    inside: list[bool] = []
    for seed in range(1, 9):
        path = run(f"seed{seed}", dataset=data, seed=seed, **keys)
        found = _found(path)
        assert "rows" not in found
        assert "correlations" not in found
        for name in ("sex", "ward", "ill"):
            facts, true = found["columns"][name], table[name].value_counts()
            inside += [abs(c - true[word]) <= facts["count_error"] for word, c in facts["counts"].items()]
    assert len(inside) == 56
    assert np.mean(inside) >= 0.88  # 95 % expected, 3 % its standard error
    privacy = json.loads((path / "summary.json").read_text())["privacy"]
    assert privacy["epsilon"] == pytest.approx(2.0, rel=1e-3)
    wider = np.sqrt(3) if noise == "client" else 1.0
    assert wider * privacy["noise"] == pytest.approx(found["columns"]["sex"]["count_error"] / 1.96)


def test_the_worst_problems_come_first(run: Runs, tmp_path: Path) -> None:
    table = _table()
    table.loc[table.owner == "south", "age"] *= 10  # other units
    table.loc[table.owner == "west", "dose"] = np.nan  # missing in one client
    table.loc[(table.owner == "north") & (table.index % 2 == 0), "ward"] = "z"  # a category of its own
    table["same"] = 7.0
    found = _found(run("bad", dataset=_write(table, tmp_path / "data"), **{"describe.min-count": 0}))
    lines = found["problems"]
    assert lines[0] == "client west: column 'dose' is missing in all rows"
    assert any(
        "client south: column 'age' differs" in line and "perhaps another unit: a factor of 10" in line
        for line in lines
    )
    assert any("client north: column 'ward' differs" in line and "it alone has 'z'" in line for line in lines)
    assert any("column 'same' has one value, 7" in line for line in lines) or "same" not in found["columns"]


@pytest.mark.parametrize("least", [0, 5])
def test_extremes_are_those_of_pandas_if_they_may_be_told(run: Runs, tmp_path: Path, least: int) -> None:
    """By default there are none; a client with fewer known values than may be shown keeps its own."""
    table = _table()
    west = table.index[table.owner == "west"]
    table.loc[west[3:], "dose"] = np.nan
    table.loc[west[0], "dose"] = 1e6
    data, keys = _write(table, tmp_path / "data"), {"describe.min-count": least}
    assert "min" not in _found(run("none", dataset=data, **keys))["columns"]["age"]
    columns = _found(run("ends", dataset=data, **keys, **{"describe.extremes": True}))["columns"]
    told = table if least == 0 else table[table.owner != "west"]
    assert (columns["age"]["min"], columns["age"]["max"]) == pytest.approx((table.age.min(), table.age.max()), rel=1e-6)
    assert columns["dose"]["max"] == pytest.approx(told.dose.max(), rel=1e-6)
    assert columns["dose"]["min"] == pytest.approx(told.dose.min(), abs=1e-6 * told.dose.max())
    assert (columns["age"]["extremes_of"], columns["dose"]["extremes_of"]) == (3, 3 if least == 0 else 2)


@pytest.mark.parametrize("secure", [False, True])
def test_rows_of_several_clients_are_counted(run: Runs, tmp_path: Path, secure: bool) -> None:
    """Each pair of clients counts; equal rows of one client do not, nor do small counts appear."""
    table = _table().assign(dose=np.random.default_rng(2).normal(size=900))
    parts = {name: table[table.owner == name] for name in ("north", "south")}
    copies = [parts["north"].head(40).assign(owner="south"), parts["north"].head(12).assign(owner="west")]
    again = parts["south"].head(30)
    whole = pd.concat([table, *copies, again], ignore_index=True)
    keys: dict[str, Value] = {
        "describe.duplicates": True,
        **({"secure-aggregation": True, "describe.by-client": False} if secure else {}),
    }
    found = _found(run("shared", dataset=_write(whole, tmp_path / "data"), **keys))
    shared = found["shared_rows"]
    assert shared["error"] < 4
    assert abs(shared["pairs"] - (40 + 12 + 12)) <= 2 * shared["error"]
    assert not shared["keyed"]
    assert any("equal rows of another client" in line for line in found["problems"])
    few = pd.concat([table, parts["north"].head(3).assign(owner="south")], ignore_index=True)
    assert _found(run("few", dataset=_write(few, tmp_path / "few"), **keys))["shared_rows"]["pairs"] in (0, None)


def test_dates_in_other_formats_are_named(run: Runs, tmp_path: Path) -> None:
    """Dates of one client alone are a problem of the description; of several formats, an error that names them."""
    table = _table()
    days = pd.to_datetime("2024-01-13") + pd.to_timedelta(np.arange(900) % 60, unit="D")
    table["admitted"] = days.strftime("%Y-%m-%d")
    south = table.owner == "south"
    table.loc[south, "admitted"] = days.strftime("%d/%m/%Y")[south]
    with pytest.raises(ConfigurationError, match=r"client south: dates as %d/%m/%Y"):
        run("formats", dataset=_write(table, tmp_path / "formats"))
    table.loc[south, "admitted"] = "week " + pd.Series(np.arange(900) % 4 + 1, index=table.index).astype(str)[south]
    table.loc[~south, "admitted"] = days.strftime("%Y-%m-01")[~south]
    found = _found(run("words", dataset=_write(table, tmp_path / "words")))
    (line,) = [one for one in found["problems"] if "holds dates of some clients alone" in one]
    assert "client north: dates such as 2024-03-31; client south: no dates; client west: dates such as" in line


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"secure-aggregation": True}, "secure-aggregation"),
        ({"describe.privacy-unit": "example"}, "describe.by-client: noise protects sums"),
        ({"participation": 0.3}, "participation"),
        ({"describe.extremes": True, "describe.by-client": False}, "describe.extremes: an extreme is a client's own"),
        ({"describe.duplicates": True, "describe.by-client": False, "describe.privacy-unit": "example"}, "duplicates"),
        ({"init": "other"}, "init"),
    ],
)
def test_mistakes(run: Runs, tmp_path: Path, keys: dict[str, Value], said: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=said):
        run("wrong", dataset=_write(_table(60), tmp_path / "data"), **keys)


@pytest.mark.parametrize(("task", "named"), [("binary", "ill"), ("regression", ""), ("survival", "E")])
def test_tables_with_any_target(run: Runs, tmp_path: Path, task: str, named: str) -> None:
    """Targets that are classes or events are described, too; other numbers are not."""
    table = _table(300)
    table["T"], table["E"] = 1.0 + np.arange(300) % 50, (np.arange(300) % 2).astype(float)
    label = {"binary": "ill", "regression": "T", "survival": "T+E"}[task]
    kept = table.drop(columns=["T", "E"] if task == "binary" else [])
    path = run(task, dataset=_write(kept, tmp_path / "data"), task=task, **{"label-column": label})
    columns = _found(path)["columns"]
    assert {"age", "dose", "sex"} <= columns.keys()
    assert ("T" in columns) is False
    if named:
        expected = table[named].astype(str).str.removesuffix(".0").value_counts().to_dict()
        assert columns[named]["counts"] == expected


def test_the_command_and_the_function(tmp_path: Path) -> None:
    """Both give the same description as the method's run."""
    data = _write(_table(300), tmp_path / "data")
    keys = {"partitioner": "natural", "missing": "indicator", "label_column": "ill", "cache_dir": str(CACHE)}
    found = fl.describe(dataset=data, num_clients=0, runs_dir=str(tmp_path / "python"), **keys)
    words = [f"{name.replace('_', '-')}={value}" for name, value in {**keys, "num_clients": 0, "dataset": data}.items()]
    options = [word for one in words for word in ("--set", one)]
    done = CliRunner().invoke(cli, ["describe", *options, "--workers", "1", "--runs-dir", str(tmp_path / "shell")])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "shell").iterdir()
    assert _found(path) == found
    assert found["rows"] == 300


class TestBadInput:
    def test_very_large_beside_very_small(self, run: Runs, tmp_path: Path) -> None:
        """Means are those of `math.fsum`, of the single-precision numbers that inputs are."""
        table = _table(300)
        table["dose"] = np.where(np.arange(300) % 3 == 0, 1e9, 1e-9) * np.random.default_rng(1).random(300)
        table.loc[::2, "dose"] *= -1
        keys: dict[str, Value] = {"standardise": "none", "describe.min-count": 0, "describe.by-client": False}
        found = _found(run("wide", dataset=_write(table, tmp_path / "data"), **keys))["columns"]["dose"]
        numbers = table.dose.to_numpy(np.float32).astype(float)
        assert found["mean"] == pytest.approx(math.fsum(numbers) / 300, rel=1e-14)
        assert found["deviation"] == pytest.approx(numbers.std(ddof=1), rel=1e-12)

    def test_one_value_in_a_client_and_none_in_another(self, run: Runs, tmp_path: Path) -> None:
        """Neither is an error; both are named, and the others' figures are theirs."""
        table = _table()
        table.loc[table.owner == "west", "age"] = 50.0
        table.loc[table.owner == "south", "dose"] = np.nan
        found = _found(run("flat", dataset=_write(table, tmp_path / "data"), **{"describe.min-count": 0}))
        assert found["by_client"]["west"]["age"]["deviation"] == pytest.approx(0, abs=1e-5)
        assert found["columns"]["dose"]["known"] == table.dose.notna().sum()
        assert found["columns"]["dose"]["mean"] == pytest.approx(table.dose.mean(), rel=1e-6)
        assert found["problems"][0] == "client south: column 'dose' is missing in all rows"
        assert any("client west: column 'age' differs" in line for line in found["problems"])

    def test_one_value_in_all_rows_of_devices(self, run: Runs, tmp_path: Path) -> None:
        """A schema may name a column that is the same everywhere; the page says it, and it gets no scale."""
        folder = tmp_path / "patients"
        for number in range(2):
            (folder / f"c{number}").mkdir(parents=True)
            rows = pd.DataFrame({"age": np.arange(20.0, 60.0), "same": 7.0, "ill": ["no", "yes"] * 20})
            for part in ("train", "test"):
                rows.to_csv(folder / f"c{number}" / f"{part}.csv", index=False)
        (folder / "schema.toml").write_text(
            'label = "ill"\nlabels = ["no", "yes"]\n[numbers]\nage = [40.0, 10.0]\nsame = [5.0, 2.0]\n'
        )
        plain = Runs(run.folder, {**KEYS, "missing": "refuse", "label-column": ""})
        path = plain("same", dataset=str(folder))
        found = _found(path)
        assert found["columns"]["same"]["deviation"] == 0
        assert "column 'same' has one value, 7, in all rows" in found["problems"]
        assert "same" not in json.loads((path / "scales.json").read_text())["numbers"]


def test_pictures_are_no_table(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="'describe' needs a table"):
        Runs(run.folder, {"method": "describe", "rounds": 1})("digits", dataset="digits")


def test_distances_are_those_of_scipy() -> None:
    from scipy.spatial.distance import jensenshannon
    from scipy.stats import wasserstein_distance

    rng = np.random.default_rng(1)
    p, q = rng.integers(0, 50, 12).astype(float), rng.integers(0, 50, 12).astype(float)
    assert jensen_shannon(p, q) == pytest.approx(jensenshannon(p, q, base=2) ** 2)
    places = 0.5 * np.arange(12)
    assert wasserstein(p, q, 0.5) == pytest.approx(wasserstein_distance(places, places, p, q))
    assert jensen_shannon(np.array([3.0, 0]), np.array([0, 2.0])) == pytest.approx(1)


def test_quantiles_are_off_by_a_bin_at_most() -> None:
    x = np.random.default_rng(2).gamma(2, 1, 5000)
    edges = np.linspace(0, 16, 33)
    counts = np.histogram(x, [-np.inf, *edges, np.inf])[0].astype(float)
    for q, value in quantiles(counts, edges).items():
        assert value is not None
        assert abs(value - np.quantile(x, float(q))) <= 0.5
