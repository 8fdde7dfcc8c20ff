"""Survival as runs: equal to lifelines on all rows, rounded times, secure sums, what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter, KaplanMeierFitter, NelsonAalenFitter
from lifelines.statistics import multivariate_logrank_test

from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.made_survival import patients
from tests.runs import Runs, vanishing
from tests.support import CACHE, settings

REAL = Path(os.environ.get("FLORILEGIUM_DATA", "/nowhere"))
KEYS: dict[str, Value] = {
    "method": "survival", "dataset": "tests.made_survival:patients", "task": "survival", "partitioner": "natural",
    "num-clients": 0, "rounds": 40, "evaluate-every": 0,
}  # fmt: skip
TCGA: dict[str, Value] = {"dataset": "fed-tcga-brca"}
CHOSEN = "age_at_index,ajcc_pathologic_t_T2,ajcc_pathologic_n_N1,ajcc_pathologic_n_N2,prior_malignancy_yes"
needs_data = pytest.mark.skipif(not (REAL / "fed_tcga_brca").is_dir(), reason="needs the files of $FLORILEGIUM_DATA")


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _found(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())["survival"]
    return found


def _made() -> pd.DataFrame:
    x, y, owners = next(patients())
    table = pd.DataFrame(x.astype(float), columns=["x0", "x1", "x2"])
    return table.assign(T=y[:, 0].astype(float), E=y[:, 1].astype(float), owner=owners)


def _tcga() -> pd.DataFrame:
    dataset = load_dataset(settings(**TCGA))
    train, table = dataset.train, dataset.spec.table
    assert table is not None
    frame = pd.DataFrame(np.asarray(train.x, np.float64), columns=[*table.numbers])[CHOSEN.split(",")]
    return frame.assign(T=train.y[:, 0].astype(float), E=train.y[:, 1].astype(float), owner=train.clients["region"])


def _cases() -> list[Any]:
    return [
        pytest.param("made", id="made"),
        pytest.param("tcga", id="tcga", marks=needs_data),
    ]


def _of(case: str) -> tuple[dict[str, Value], pd.DataFrame]:
    return ({}, _made()) if case == "made" else ({**TCGA, "survival.columns": CHOSEN}, _tcga())


@pytest.mark.parametrize("case", _cases())
def test_curves_are_those_of_lifelines(run: Runs, case: str) -> None:
    keys, table = _of(case)
    found = _found(run("curves", **keys, **{"survival.cox": "none"}))
    one = found["curves"]["all"]
    km = KaplanMeierFitter().fit(table["T"], table["E"])
    np.testing.assert_allclose(one["survival"], km.predict(one["times"]), rtol=1e-12)
    na = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(table["T"], table["E"])
    np.testing.assert_allclose(one["cumulative_hazard"], na.predict(one["times"]), rtol=1e-12)
    assert one["median"] == (km.median_survival_time_ if np.isfinite(km.median_survival_time_) else None)
    n, d = np.array(one["at_risk"]), np.array(one["deaths"])
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.array(one["survival"]) * np.sqrt(np.cumsum(d / (n * (n - d))))
    last = n > d
    np.testing.assert_allclose(np.array(one["standard_error"])[last], greenwood[last], rtol=1e-12)


@pytest.mark.parametrize("case", _cases())
def test_the_log_rank_test_is_that_of_lifelines(run: Runs, case: str) -> None:
    keys, table = _of(case)
    found = _found(run("groups", **keys, **{"survival.cox": "none", "survival.group": "client"}))
    expected = multivariate_logrank_test(table["T"], table["owner"], table["E"])
    assert found["log_rank"]["statistic"] == pytest.approx(expected.test_statistic, rel=1e-9)
    assert found["log_rank"]["p"] == pytest.approx(expected.p_value, rel=1e-6)
    for owner, own in table.groupby("owner"):
        one = found["curves"][owner]
        km = KaplanMeierFitter().fit(own["T"], own["E"])
        np.testing.assert_allclose(one["survival"], km.predict(one["times"]) if one["times"] else [], rtol=1e-12)


def _written(folder: Path) -> tuple[dict[str, Value], pd.DataFrame]:
    """Write a table whose column ``treated`` is mostly 1, and return keys for it and the training rows."""
    rng, table = np.random.default_rng(4), _made().rename(columns={"owner": "site"})
    table["treated"] = (rng.random(len(table)) < 0.9).astype(float)
    table["seen"] = (pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 60, len(table)), unit="D")).strftime(
        "%Y-%m-%d"
    )
    folder.mkdir()
    for part, rows in (("train", table), ("test", table.head(40))):
        rows.to_csv(folder / f"{part}.csv", index=False)
    return {"dataset": str(folder), "label-column": "T+E", "client-column": "site", "survival.cox": "none"}, table


def test_groups_of_zero_and_one_are_their_values(run: Runs, tmp_path: Path) -> None:
    """Inputs are standardised, so that a 1 of a column that is mostly 1 is a small number."""
    keys, table = _written(tmp_path / "data")
    found = _found(run("treated", **keys, **{"survival.group": "treated"}))
    for value in (0, 1):
        assert found["curves"][f"treated = {value}"]["at_risk"][0] <= (table.treated == value).sum()
        km = KaplanMeierFitter().fit(*table.loc[table.treated == value, ["T", "E"]].to_numpy().T)
        one = found["curves"][f"treated = {value}"]
        np.testing.assert_allclose(one["survival"], km.predict(one["times"]), rtol=1e-12)
    expected = multivariate_logrank_test(table["T"], table["treated"], table["E"])
    assert found["log_rank"]["statistic"] == pytest.approx(expected.test_statistic, rel=1e-9)


def test_groups_of_other_numbers_are_refused(run: Runs, tmp_path: Path) -> None:
    keys, _ = _written(tmp_path / "data")
    with pytest.raises(RunError, match=r"survival\.group: column 'x0' has other values than 0 and 1"):
        run("numbers", **keys, **{"survival.group": "x0"})
    with pytest.raises(ConfigurationError, match=r"survival\.group: 'seen' holds dates"):
        run("dates", **keys, **{"survival.group": "seen"})


def _equal(fit: dict[str, Any], expected: CoxPHFitter, rel: float = 1e-6) -> None:
    found = pd.DataFrame(fit["coefficients"]).set_index("name")
    names = expected.params_.index
    np.testing.assert_allclose(found.loc[names, "coefficient"].astype(float), expected.params_, rtol=rel)
    np.testing.assert_allclose(found.loc[names, "standard_error"].astype(float), expected.standard_errors_, rtol=rel)
    assert fit["log_likelihood"] == pytest.approx(expected.log_likelihood_, rel=1e-9)
    assert fit["converged"]


def _lifelines(table: pd.DataFrame, *, stratified: bool) -> CoxPHFitter:
    """Return the pooled fit (Efron ties), followed until its steps vanish."""
    options = {"precision": 1e-12, "max_steps": 200}
    if stratified:
        return CoxPHFitter().fit(table, "T", "E", strata=["owner"], fit_options=options)
    return CoxPHFitter().fit(table.drop(columns="owner"), "T", "E", fit_options=options)


@pytest.mark.parametrize("kind", ["stratified", "unstratified"])
@pytest.mark.parametrize("case", _cases())
def test_cox_models_are_those_of_lifelines(run: Runs, case: str, kind: str) -> None:
    keys, table = _of(case)
    fit = _found(run("cox", **keys, **{"survival.cox": kind}))["model"]
    _equal(fit, _lifelines(table, stratified=kind == "stratified"))


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_fit_that_loses_a_client_is_that_of_the_others(run: Runs, after: int) -> None:
    found = _found(run("lost", nodes=6, intercept=vanishing("1", after), **{"min-success": 0.5}))
    table = _made()
    rest = table[table["owner"] != sorted(table["owner"].unique())[1]]
    _equal(found["model"], _lifelines(rest, stratified=True))
    km = KaplanMeierFitter().fit(rest["T"], rest["E"])
    np.testing.assert_allclose(
        found["curves"]["all"]["survival"], km.predict(found["curves"]["all"]["times"]), rtol=1e-12
    )


@pytest.mark.parametrize("kind", ["stratified", "unstratified"])
def test_breslow_ties(run: Runs, kind: str) -> None:
    """Of statsmodels, since lifelines counts ties by Efron alone."""
    from statsmodels.duration.hazard_regression import PHReg

    table = _made()
    strata = table["owner"].to_numpy() if kind == "stratified" else None
    pooled = PHReg(table["T"], table[["x0", "x1", "x2"]], status=table["E"], ties="breslow", strata=strata).fit()
    fit = _found(run("breslow", **{"survival.cox": kind, "survival.ties": "breslow"}))["model"]
    np.testing.assert_allclose([line["coefficient"] for line in fit["coefficients"]], pooled.params, rtol=1e-5)
    assert fit["log_likelihood"] == pytest.approx(pooled.llf, rel=1e-9)


@pytest.mark.parametrize("secure", [False, True])
def test_public_intervals_are_a_fit_of_rounded_times(run: Runs, secure: bool) -> None:
    """Times are rounded up, those after the horizon censored at its end; sums alone reach the server."""
    keys: dict[str, Value] = {"survival.cox": "unstratified", "survival.width": 5.0, "survival.horizon": 30.0}
    path = run("rounded", **keys, **({"secure-aggregation": True} if secure else {}))
    table = _made()
    late = table["T"] > 30
    table["T"], table["E"] = np.minimum(np.ceil(table["T"] / 5) * 5, 30), np.where(late, 0, table["E"])
    _equal(_found(path)["model"], _lifelines(table, stratified=False))
    assert _found(path)["curves"]["all"]["times"] == [5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("case", _cases())
def test_the_discrete_model_is_a_logistic_regression_of_periods(run: Runs, case: str, secure: bool) -> None:
    """On a row for each interval at risk, with an indicator of each interval, by statsmodels."""
    import statsmodels.api as sm

    keys, table = _of(case)
    width, horizon = (5.0, 40.0) if case == "made" else (365.0, 3650.0)
    wide: dict[str, Value] = {"survival.width": width, "survival.horizon": horizon, "survival.cox": "discrete"}
    more: dict[str, Value] = {"secure-aggregation": True, "secure-range": 2.0**20} if secure else {}
    found = _found(run("discrete", **keys, **wide, **more))
    times = np.minimum(np.ceil(table["T"] / width - 1e-9) * width, horizon)
    events = np.where(table["T"] > horizon, 0.0, table["E"])
    columns = [name for name in table if name not in ("T", "E", "owner")]
    ends = np.unique(times[events > 0])
    parts = [
        (table.loc[times >= end, columns].to_numpy(), np.eye(len(ends))[[k] * int((times >= end).sum())],
         ((times == end) & (events > 0))[times >= end])
        for k, end in enumerate(ends)
    ]  # fmt: skip
    x, intervals, y = (np.concatenate([part[i] for part in parts]) for i in range(3))
    pooled = sm.Logit(y.astype(float), np.column_stack([x, intervals])).fit(disp=0, tol=1e-14, maxiter=200)
    lines = pd.DataFrame(found["model"]["coefficients"]).set_index("name").loc[columns]
    np.testing.assert_allclose(lines["coefficient"].astype(float), pooled.params[: len(columns)], rtol=1e-6)
    np.testing.assert_allclose(lines["standard_error"].astype(float), pooled.bse[: len(columns)], rtol=1e-6)
    assert found["model"]["log_likelihood"] == pytest.approx(pooled.llf, rel=1e-9)
    assert found["model"]["converged"]


def test_short_intervals_lead_to_the_cox_model(run: Runs) -> None:
    """With rare deaths in each interval the discrete hazard is that of the Cox model."""
    exact = _found(run("exact", **{"survival.cox": "unstratified"}))["model"]["coefficients"]
    far = []
    for width in (20.0, 1.0):
        wide: dict[str, Value] = {"survival.width": width, "survival.horizon": 40.0, "survival.cox": "discrete"}
        lines = _found(run(f"wide{width}", **wide))["model"]["coefficients"]
        far.append(max(abs(a["coefficient"] - b["coefficient"]) / b["standard_error"]
                       for a, b in zip(lines, exact, strict=True)))  # fmt: skip
    assert far[1] < 0.3
    assert far[1] < far[0] / 2


def test_exact_times_are_no_secure_sum(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="secure-aggregation: it is not supported by method 'survival'"):
        run("no", **{"secure-aggregation": True})


def test_what_leaves_a_client(run: Runs) -> None:
    """Without intervals the times of events; with them no phase that asks for times is called."""
    run("exact")
    asked = [m.content["config"]["phase"] for m in run.grid.sent if "config" in m.content]
    assert "events" in asked
    run("rounded", **{"survival.width": 5.0, "survival.horizon": 30.0})
    asked = [m.content["config"]["phase"] for m in run.grid.sent if "config" in m.content]
    assert "events" not in asked
    assert "count" in asked


def test_any_packing_and_resuming(run: Runs) -> None:
    whole, broken = run.whole_and_broken(3, **{"checkpoint-every": 1, "survival.cox": "unstratified"})
    first, second = read_checkpoint(whole), read_checkpoint(broken)
    assert all(np.array_equal(array, second.state[name]) for name, array in first.state.items())
    other = _found(run("packed", 3, **{"survival.cox": "unstratified"}))["model"]["coefficients"]
    mine = _found(whole)["model"]["coefficients"]
    np.testing.assert_allclose(
        [line["coefficient"] for line in other], [line["coefficient"] for line in mine], rtol=1e-10
    )


def _data(x: np.ndarray, times: np.ndarray, events: np.ndarray) -> str:
    y, owners = np.column_stack([times, events]).astype(np.float32), np.array(["a", "b"])[np.arange(len(x)) % 2]
    few = slice(0, 6)
    return array_dataset(
        (x.astype(np.float32), y, owners), (x[few].astype(np.float32), y[few], owners[few]), cache_dir=str(CACHE)
    )


class TestBadInput:
    def test_no_events(self, run: Runs) -> None:
        data = _data(np.ones((20, 1)), np.arange(1, 21), np.zeros(20))
        with pytest.raises(DataError, match="survival needs events"):
            run("none", dataset=data)

    def test_no_event_before_the_horizon(self, run: Runs) -> None:
        with pytest.raises(RunError, match="no client has an event"):
            run("early", **{"survival.width": 0.5, "survival.horizon": 0.5})

    def test_times_of_zero(self, run: Runs) -> None:
        data = _data(np.ones((20, 1)), np.arange(20), np.ones(20))
        with pytest.raises(DataError, match="times above 0"):
            run("zero", dataset=data)

    def test_a_constant_and_a_collinear_column(self, run: Runs) -> None:
        x, y, _ = next(patients())
        more = np.column_stack([x, np.full(len(x), 3.0), x[:, 0] + x[:, 1]])
        fit = _found(run("more", dataset=_data(more, y[:, 0], y[:, 1]), **{"survival.cox": "unstratified"}))["model"]
        assert fit["without_coefficient"] == ["x3", "x4"]
        table = _made().drop(columns="owner")
        expected = CoxPHFitter().fit(table, "T", "E", fit_options={"precision": 1e-12, "max_steps": 200})
        np.testing.assert_allclose([line["coefficient"] for line in fit["coefficients"]], expected.params_, rtol=1e-6)

    def test_a_column_without_events_on_one_side(self, run: Runs) -> None:
        x, y, _ = next(patients())
        flag = (np.arange(len(x)) % 5 == 0).astype(float)
        events = np.where(flag == 1, 0, y[:, 1])
        fit = _found(run("side", dataset=_data(np.column_stack([x, flag]), y[:, 0], events)))["model"]
        assert fit["diverging"] == ["x3"]
        assert not fit["converged"]
        assert fit["coefficients"][3]["coefficient"] is None
        assert fit["coefficients"][0]["standard_error"] is not None

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"survival.columns": "x0,x9"}, "survival.columns: 'x9' is no input column"),
            ({"survival.group": "x9"}, "survival.group: 'x9' is no input column"),
            ({"survival.width": 5.0}, "survival.horizon: intervals need an end"),
            ({"participation": 0.3}, "participation"),
            ({"dataset": "digits", "task": "", "partitioner": "iid", "num-clients": 4}, "needs times to an event"),
        ],
    )
    def test_mistakes(self, run: Runs, keys: dict[str, Value], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            run("wrong", **keys)
