"""Generalised linear models as runs: equal to pooled fits of statsmodels, exact whatever the nodes, mistakes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from safetensors.numpy import load_file
from statsmodels.regression.mixed_linear_model import MixedLM

from florilegium.apps.runs.personal import personalise
from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs, vanishing
from tests.support import CACHE, settings

Array = NDArray[np.float64]
REAL = Path(os.environ.get("FLORILEGIUM_DATA", "/nowhere"))
KEYS: dict[str, Value] = {
    "method": "glm", "partitioner": "natural", "num-clients": 0, "rounds": 60, "evaluate-every": 0, "min-examples": 0,
}  # fmt: skip
WORDS = ("coefficient", "standard_error", "statistic", "p", "low", "high")
needs_data = pytest.mark.skipif(not (REAL / "adult").is_dir(), reason="needs the files of $FLORILEGIUM_DATA")


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _fit(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())["glm"]
    return found


def _column(fit: dict[str, Any], word: str = "coefficient") -> Array:
    return np.array([np.nan if line[word] is None else line[word] for line in fit["coefficients"]])


def _own(path: Path, client: str) -> dict[str, Array]:
    """Return the arrays of a client's own model."""
    folder = personalise(path, path / "model", client)
    return dict(load_file(next(folder.glob("*.safetensors"))))


def _data(x: Array, y: Sequence[Any] | Array, owners: Sequence[Any] | Array) -> str:
    """Return a dataset of these training rows; the first two of each client are its test rows, too."""
    owners = np.array([f"c{owner}" for owner in owners])
    few = np.concatenate([np.flatnonzero(owners == owner)[:2] for owner in np.unique(owners)])
    y, x = np.asarray(y), np.asarray(x, np.float32)
    return array_dataset((x, y, owners), (x[few], y[few], owners[few]), cache_dir=str(CACHE))


def _made(n: int = 600, d: int = 4, seed: int = 1) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return inputs, a linear predictor and owners of unequal size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32).astype(np.float64)
    return x, x @ rng.normal(size=d) * 0.7 + 0.3, rng.choice(5, n, p=[0.4, 0.3, 0.15, 0.1, 0.05])


def _equal(fit: dict[str, Any], pooled: Any, rel: float = 1e-6) -> None:
    """Check coefficients, errors, tests, intervals, likelihood and AIC against a fit of statsmodels."""
    intervals = np.asarray(pooled.conf_int())
    low, high = intervals[..., 0].T, intervals[..., 1].T  # (columns, classes) as the others, if there are classes
    expected = (pooled.params, pooled.bse, pooled.tvalues, pooled.pvalues, low, high)
    for word, values in zip(WORDS, expected, strict=True):
        values = np.asarray(values)
        np.testing.assert_allclose(
            _column(fit, word), values.T.ravel(), rtol=10 * rel if word == "p" else rel, atol=1e-12
        )
    assert fit["log_likelihood"] == pytest.approx(pooled.llf, rel=1e-9)
    assert fit["aic"] == pytest.approx(pooled.aic, rel=1e-9)
    assert fit["converged"]


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_fit_that_loses_a_client_is_that_of_the_others(
    run: Runs, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins anew: centres, numbers of rows and steps are all of the same rows."""
    x, η, owners = _made()
    y = (η + np.random.default_rng(2).normal(size=len(η))).astype(np.float32)
    keys: dict[str, Value] = {"dataset": _data(x, y, owners), "min-success": 0.5}
    path = run("lost", nodes=5, intercept=vanishing("1", after), **keys)
    rest = owners != 1
    _equal(_fit(path), sm.OLS(y[rest].astype(np.float64), sm.add_constant(x[rest])).fit())
    assert (_fit(path)["clients"], _fit(path)["rows"]) == (4, int(rest.sum()))
    assert "4 clients replied, and 5 before" in caplog.text
    last = run("last", nodes=5, intercept=vanishing("1", after), rounds=1 if after < 4 else 2, **keys)
    assert not _fit(last).get("coefficients")  # no round is left


class TestPooled:
    def test_linear(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (η + np.random.default_rng(2).normal(size=len(η))).astype(np.float32)
        fit = _fit(run("linear", dataset=_data(x, y, owners)))
        _equal(fit, sm.OLS(y.astype(np.float64), sm.add_constant(x)).fit())
        assert fit["dispersion"] == pytest.approx(sm.OLS(y.astype(np.float64), sm.add_constant(x)).fit().scale)

    def test_logistic_in_any_packing(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(len(η)) < 1 / (1 + np.exp(-η))).astype(int)
        keys = {"dataset": _data(x, y, owners)}
        fit = _fit(run("logistic", **keys))
        _equal(fit, sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-14))
        for nodes in (1, 3):
            other = _fit(run(f"nodes{nodes}", nodes, **keys))
            np.testing.assert_allclose(_column(other), _column(fit), rtol=1e-12)

    def test_poisson_with_an_offset(self, run: Runs) -> None:
        x, η, owners = _made()
        rng = np.random.default_rng(4)
        exposure = rng.normal(size=len(η)).astype(np.float32)
        y = rng.poisson(np.exp(0.5 * η + exposure)).astype(np.float32)
        keys: dict[str, Value] = {"dataset": _data(np.column_stack([x, exposure]), y, owners), "task": "counts"}
        fit = _fit(run("poisson", **keys, **{"glm.offset": "x4"}))
        pooled = sm.GLM(
            y.astype(np.float64), sm.add_constant(x), family=sm.families.Poisson(),
            offset=exposure.astype(np.float64),
        )  # fmt: skip
        _equal(fit, pooled.fit(tol=1e-14))

    def test_multinomial(self, run: Runs) -> None:
        x, η, owners = _made()
        scores = np.column_stack([np.zeros(len(η)), η, x[:, 0] - 0.5]) + np.random.default_rng(5).gumbel(size=(600, 3))
        y = scores.argmax(axis=1)
        fit = _fit(run("multinomial", dataset=_data(x, y, owners)))
        _equal(fit, sm.MNLogit(y, sm.add_constant(x)).fit(disp=0, method="newton", tol=1e-14, maxiter=100))
        assert fit["coefficients"][5]["name"] == "2: intercept"

    def test_ridge_is_that_of_normal_equations(self, run: Runs) -> None:
        x, η, owners = _made()
        y = η.astype(np.float32)
        fit = _fit(run("ridge", **{"dataset": _data(x, y, owners), "glm.ridge": 50.0}))
        design = sm.add_constant(x)
        expected = np.linalg.solve(design.T @ design + np.diag([0, *[50.0] * 4]), design.T @ y)
        np.testing.assert_allclose(_column(fit), expected, rtol=1e-9)

    def test_weights(self, run: Runs, tmp_path: Path) -> None:
        """Of a table by files of clients, in its own units, with a category; the column of weights is no input."""
        import pandas as pd

        x, η, owners = _made()
        rng = np.random.default_rng(6)
        table = pd.DataFrame(
            {"age": 50 + 10 * x[:, 0], "sex": rng.choice(["f", "m"], 600), "w": rng.integers(0, 4, 600)}
        )
        y = (rng.random(600) < 1 / (1 + np.exp(-η))).astype(int)
        folder = tmp_path / "own"
        for owner in range(5):
            for part in ("train", "test"):
                (folder / f"c{owner}").mkdir(parents=True, exist_ok=True)
                table.assign(label=y)[owners == owner].to_csv(folder / f"c{owner}" / f"{part}.csv", index=False)
        path = run(
            "weights", dataset=str(folder), **{"weight-column": "w", "input-columns": "age,sex", "duplicates": "warn"}
        )
        fit = _fit(path)
        design = sm.add_constant(np.column_stack([table["age"], table["sex"] == "m"]).astype(np.float64))
        pooled = sm.GLM(y, design, family=sm.families.Binomial(), var_weights=table["w"].astype(float)).fit(tol=1e-14)
        np.testing.assert_allclose(_column(fit), pooled.params, rtol=2e-6)  # ages are encoded in single precision
        np.testing.assert_allclose(_column(fit, "standard_error"), pooled.bse, rtol=1e-6)
        assert [line["name"] for line in fit["coefficients"]] == ["intercept", "age", "sex=m"]

    @needs_data
    @pytest.mark.parametrize("secure", [False, True])
    def test_heart_disease(self, run: Runs, secure: bool) -> None:
        """Four hospitals; with secure aggregation, whose integers round sums, to 1e-6 as well."""
        keys: dict[str, Value] = {"secure-aggregation": True, "secure-range": 2.0**20} if secure else {}
        fit = _fit(run("heart", dataset="fed-heart-raw", **keys))
        train = load_dataset(settings(dataset="fed-heart-raw")).train
        x, y = np.asarray(train.x, np.float64), np.asarray(train.y)
        _equal(fit, sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-14))

    @needs_data
    def test_adult_in_its_own_units(self, run: Runs) -> None:
        keys: dict[str, Value] = {"dataset": "adult", "client-column": "workclass", "task": "binary"}
        chosen = "age,education.num,hours.per.week,sex,race"
        fit = _fit(run("adult", **keys, **{"glm.columns": chosen}))
        federation, dataset = federate(settings(**{**KEYS, **keys}))
        parts = [simulated(federation, dataset, client).train for client in range(len(federation))]
        x = np.concatenate([part.x.numpy() for part in parts]).astype(np.float64)
        y = np.concatenate([part.y.numpy() for part in parts])
        table = dataset.spec.table
        assert table is not None
        names, start = [*table.numbers], {}
        place = len(names)
        for name, words in table.categories.items():
            start[name], place = place, place + len(words)
        columns = [np.ones(len(x))]
        for name in ("age", "education.num", "hours.per.week"):
            mean, std = table.numbers[name]
            columns.append(np.round(mean + std * x[:, names.index(name)]))  # whole numbers, as in the file
        for name in ("race", "sex"):
            columns += [x[:, start[name] + i] for i in range(1, len(table.categories[name]))]
        _equal(fit, sm.Logit(y, np.column_stack(columns)).fit(disp=0, tol=1e-14), rel=2e-6)


class TestIntercepts:
    def test_fixed_ones_are_those_of_indicators(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η - owners + 1))).astype(int)
        path = run("fixed", dataset=_data(x, y, owners), **{"glm.intercept": "client"})
        fit, indicators = _fit(path), np.eye(5)[owners]
        pooled = sm.Logit(y, np.column_stack([x, indicators])).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose(_column(fit), pooled.params[:4], rtol=1e-6)
        np.testing.assert_allclose(_column(fit, "standard_error"), pooled.bse[:4], rtol=1e-6)
        assert fit["aic"] == pytest.approx(pooled.aic, rel=1e-9)
        model = _own(path, "c0")
        np.testing.assert_allclose(model["fc.1.bias"][-1], pooled.params[4], rtol=1e-4)  # in single precision

    @pytest.mark.parametrize("task", ["counts", "regression", "classification"])
    def test_fixed_ones_of_all_families(self, run: Runs, task: str) -> None:
        x, η, owners = _made()
        rng = np.random.default_rng(3)
        η = η + 0.4 * owners
        if task == "classification":
            y: Array = np.column_stack([0 * η, η, x[:, 0]] + rng.gumbel(size=(3, 600))[:, :, None].tolist() * 0)
            y = (np.column_stack([0 * η, η, x[:, 0]]) + rng.gumbel(size=(600, 3))).argmax(axis=1)
        else:
            y = (rng.poisson(np.exp(0.4 * η)) if task == "counts" else η + rng.normal(size=600)).astype(np.float32)
        fit = _fit(run(task, dataset=_data(x, y, owners), task=task, **{"glm.intercept": "client"}))
        design, of = np.column_stack([x, np.eye(5)[owners]]), y.astype(np.float64)
        if task == "classification":
            pooled = sm.MNLogit(y, design).fit(disp=0, method="newton", tol=1e-14, maxiter=100)
        elif task == "counts":
            pooled = sm.GLM(of, design, family=sm.families.Poisson()).fit(tol=1e-14)
        else:
            pooled = sm.OLS(of, design).fit()
        params, errors = np.asarray(pooled.params)[:4].T.ravel(), np.asarray(pooled.bse)[:4].T.ravel()
        np.testing.assert_allclose(_column(fit), params, rtol=1e-6)
        np.testing.assert_allclose(_column(fit, "standard_error"), errors, rtol=1e-6)

    def test_a_client_of_one_class_tells_nothing_of_the_slopes(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        y[owners == 4] = 1
        kept = owners != 4
        fit = _fit(run("one", dataset=_data(x, y, owners), **{"glm.intercept": "client"}))
        pooled = sm.Logit(y[kept], np.column_stack([x, np.eye(5)[owners][:, :4]])[kept]).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose(_column(fit), pooled.params[:4], rtol=1e-6)

    @pytest.mark.parametrize("secure", [False, True])
    def test_a_random_one_is_that_of_a_mixed_model(self, run: Runs, secure: bool) -> None:
        x, η, _ = _made()
        rng = np.random.default_rng(7)
        owners = rng.integers(12, size=600)
        y = (η + rng.normal(size=12)[owners] + rng.normal(size=600)).astype(np.float32)
        keys: dict[str, Value] = {"secure-aggregation": True} if secure else {}
        path = run("random", dataset=_data(x, y, owners), **{"glm.intercept": "random", **keys})
        fit = _fit(path)
        pooled = MixedLM(y.astype(np.float64), sm.add_constant(x), groups=owners).fit(reml=True, gtol=1e-10)
        np.testing.assert_allclose(_column(fit), pooled.fe_params, rtol=1e-4)
        np.testing.assert_allclose(_column(fit, "standard_error"), pooled.bse_fe, rtol=1e-3)  # of a joint Hessian
        inverse = np.eye(600) + fit["intercept_variance"] / fit["dispersion"] * (owners[:, None] == owners)
        design = sm.add_constant(x)
        covariance = fit["dispersion"] * np.linalg.inv(design.T @ np.linalg.solve(inverse, design))
        np.testing.assert_allclose(_column(fit, "standard_error"), np.sqrt(np.diag(covariance)), rtol=1e-6)
        assert fit["dispersion"] == pytest.approx(pooled.scale, rel=1e-4)
        assert fit["intercept_variance"] == pytest.approx(float(np.asarray(pooled.cov_re)[0, 0]), rel=1e-4)
        residual = y - design @ _column(fit)
        weight = np.linalg.inv(fit["dispersion"] * inverse)
        determinants = -np.linalg.slogdet(weight)[1] + np.linalg.slogdet(design.T @ weight @ design)[1]
        restricted = -0.5 * (595 * np.log(2 * np.pi) + determinants + residual @ weight @ residual)
        assert fit["log_likelihood"] == pytest.approx(restricted, rel=1e-9)
        assert not fit["at_boundary"]
        if not secure:
            bias = _own(path, "c0")["fc.1.bias"][0]
            expected = float(np.asarray(pooled.random_effects[0])[0]) + pooled.fe_params[0]
            assert bias == pytest.approx(expected, rel=1e-4)

    def test_a_variance_of_zero_is_reported(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (η + np.random.default_rng(8).normal(size=600)).astype(np.float32)
        for owner in range(5):  # residuals of the same mean everywhere
            y[owners == owner] -= np.mean((y - η)[owners == owner])
        fit = _fit(run("none", dataset=_data(x, y, owners), **{"glm.intercept": "random"}))
        assert fit["at_boundary"]
        assert fit["intercept_variance"] == 0


class TestBadInput:
    def test_perfect_separation_is_found(self, run: Runs) -> None:
        x, _, owners = _made()
        fit = _fit(run("apart", dataset=_data(x, (x[:, 1] > 0.2).astype(int), owners)))
        assert "x1" in fit["separated"]
        assert not fit["converged"]
        assert fit["coefficients"][2]["coefficient"] is None

    def test_a_column_that_separates_some_rows(self, run: Runs) -> None:
        """Quasi-complete separation: the other coefficients are those of the rows that it does not decide."""
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        flag = (np.arange(600) < 30).astype(float)
        y[flag == 1] = 1
        fit = _fit(run("quasi", dataset=_data(np.column_stack([x, flag]), y, owners)))
        assert fit["separated"] == ["x4"]
        rest = sm.Logit(y[flag == 0], sm.add_constant(x[flag == 0])).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose(_column(fit)[:5], rest.params, rtol=1e-3)
        np.testing.assert_allclose(_column(fit, "standard_error")[:5], rest.bse, rtol=1e-3)

    def test_counts_of_zero_alone_in_a_group(self, run: Runs) -> None:
        x, η, owners = _made()
        y = np.random.default_rng(3).poisson(np.exp(0.4 * η))
        flag = (np.arange(600) < 30).astype(float)
        y[flag == 1] = 0
        keys: dict[str, Value] = {"task": "counts"}
        fit = _fit(run("zeros", dataset=_data(np.column_stack([x, flag]), y.astype(np.float32), owners), **keys))
        assert fit["separated"] == ["x4"]

    def test_nearly_separated_rows_have_estimates(self, run: Runs) -> None:
        x, _, owners = _made(200)
        y = (x[:, 1] > 0.2).astype(int)
        y[np.argmax(x[:, 1])] = 0
        fit = _fit(run("nearly", dataset=_data(x, y, owners)))
        _equal(fit, sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-14, maxiter=100), rel=1e-5)

    def test_constant_and_collinear_columns_have_no_coefficient(self, run: Runs) -> None:
        x, η, owners = _made()
        both = np.column_stack([x[:, :2], np.full(600, 7.0), x[:, 0] - 2 * x[:, 1], x[:, 2:]])
        y = (η + np.random.default_rng(2).normal(size=600)).astype(np.float32)
        fit = _fit(run("collinear", dataset=_data(both, y, owners)))
        assert fit["without_coefficient"] == ["x2", "x3"]
        np.testing.assert_allclose(_column(fit), sm.OLS(y, sm.add_constant(x)).fit().params, rtol=1e-6)

    def test_very_large_beside_very_small(self, run: Runs) -> None:
        x, η, owners = _made()
        big = (x * np.array([1e9, 1e-9, 1, 1]) + np.array([3e9, 0, 0, 1e4])).astype(np.float32).astype(np.float64)
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        fit = _fit(run("scales", dataset=_data(big, y, owners)))
        scale = np.array([1, 1e9, 1e-9, 1, 1])
        centred = (big - np.array([3e9, 0, 0, 1e4])) / np.array([1e9, 1e-9, 1, 1])
        pooled = sm.Logit(y, sm.add_constant(centred)).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose((_column(fit) * scale)[1:], pooled.params[1:], rtol=1e-6)

    def test_fewer_rows_than_columns(self, run: Runs) -> None:
        x, η, owners = _made(6, 8)
        owners = np.array([0, 0, 0, 1, 1, 1])
        data = _data(x, η.astype(np.float32), owners)
        with pytest.raises(RunError, match="6 rows of all clients do not suffice for 6 coefficients"):
            run("few", dataset=data)
        fit = _fit(run("ridge", dataset=data, **{"glm.ridge": 1.0}))
        assert np.isfinite(_column(fit)).all()

    def test_a_category_that_one_client_alone_has(self, run: Runs) -> None:
        x, η, owners = _made()
        flag = ((owners == 2) & (np.arange(600) % 2 == 0)).astype(float)
        y = (η + flag + np.random.default_rng(2).normal(size=600)).astype(np.float32)
        design = np.column_stack([x, flag])
        fit = _fit(run("alone", dataset=_data(design, y, owners)))
        _equal(fit, sm.OLS(y.astype(np.float64), sm.add_constant(design)).fit())

    def test_a_column_that_a_client_has_no_value_of(self, run: Runs, tmp_path: Path) -> None:
        """Its rows have the median of the others, as in a pooled fit, and an indicator."""
        import pandas as pd

        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        table = pd.DataFrame({"age": 50 + 10 * x[:, 0], "dose": 20 + 5 * x[:, 1], "label": y})
        table.loc[owners == 4, "dose"] = np.nan
        for owner in range(5):
            (tmp_path / "own" / f"c{owner}").mkdir(parents=True)
            for part in ("train", "test"):
                table[owners == owner].to_csv(tmp_path / "own" / f"c{owner}" / f"{part}.csv", index=False)
        keys: dict[str, Value] = {"missing": "indicator", "duplicates": "warn", "label-column": "label"}
        fit = _fit(run("gone", dataset=str(tmp_path / "own"), **keys))
        dose, gone = table.dose.fillna(table.dose.median()), table.dose.isna()
        design = sm.add_constant(np.column_stack([table.age, dose, gone]).astype(np.float64))
        pooled = sm.Logit(y, design).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose(_column(fit), pooled.params, rtol=2e-6)
        np.testing.assert_allclose(_column(fit, "standard_error"), pooled.bse, rtol=2e-6)

    def test_negative_counts(self, run: Runs) -> None:
        x, η, owners = _made(40)
        with pytest.raises(DataError, match="counts are at least 0, and row"):
            run("negative", dataset=_data(x, η.astype(np.float32), owners), task="counts")

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"participation": 0.3}, "participation"),
            ({"cohort-size": 2}, "the sums of an exact fit are over all clients"),
            ({"glm.columns": "x0,x9"}, "glm.columns: 'x9' is no input column"),
            ({"glm.offset": "x9"}, "glm.offset: 'x9' is no input column"),
            ({"glm.columns": "x0", "glm.offset": "x0"}, "must hold numbers, and not be in glm.columns"),
            ({"glm.intercept": "random"}, "'random' is for linear models"),
            ({"glm.intercept": "client", "glm.privacy-unit": "example"}, "'client' and glm.privacy-unit do not go"),
            ({"glm.privacy-unit": "example", "rounds": 2}, "rounds: a private fit takes 6"),
            ({"loss": "focal"}, "needs the likelihood of a generalised linear model"),
            ({"model": "lenet"}, "model: method 'glm' sets it"),
        ],
    )
    def test_mistakes_are_found_before_the_run(self, run: Runs, keys: dict[str, Value], said: str) -> None:
        x, η, owners = _made(60)
        with pytest.raises(ConfigurationError, match=said):
            run("wrong", **{"dataset": _data(x, (η > 0).astype(int), owners), **keys})


class TestRuns:
    def test_a_resumed_run_is_the_whole_one(self, run: Runs) -> None:
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        whole, broken = run.whole_and_broken(3, dataset=_data(x, y, owners), **{"checkpoint-every": 1})
        first, second = read_checkpoint(whole), read_checkpoint(broken)
        assert first.facts["own"] == second.facts["own"]
        assert all(np.array_equal(array, second.state[name]) for name, array in first.state.items())

    def test_clients_that_are_lost_are_said(self, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        """The fit goes on, and is that of the others."""
        from florilegium.clients.statistics.glm import GLMClient

        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        perform = GLMClient.perform

        def failing(self: GLMClient, name: str, *rest: Any) -> Any:
            if self.client_id == "1" and self.round > 2:
                raise RunError("it has no power left")
            return perform(self, name, *rest)

        monkeypatch.setattr(GLMClient, "perform", failing)
        fit = _fit(run("lost", dataset=_data(x, y, owners), **{"min-success": 0.5}))
        assert fit["clients"] == 4
        kept = owners != 1
        pooled = sm.Logit(y[kept], sm.add_constant(x[kept])).fit(disp=0, tol=1e-14)
        np.testing.assert_allclose(_column(fit), pooled.params, rtol=1e-6)

    @pytest.mark.parametrize("task", ["classification", "binary"])
    def test_the_network_predicts_as_the_model(self, run: Runs, task: str) -> None:
        x, η, owners = _made()
        y = (np.random.default_rng(3).random(600) < 1 / (1 + np.exp(-η))).astype(int)
        path = run(task, dataset=_data(x, y, owners), task=task)
        arrays = read_checkpoint(path).arrays
        scores = x @ arrays["fc.1.weight"].T + arrays["fc.1.bias"]
        η = scores[:, -1] - (scores[:, 0] if task == "classification" else 0)
        expected = sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-14).predict(sm.add_constant(x), which="linear")
        np.testing.assert_allclose(η, expected, atol=1e-5)
