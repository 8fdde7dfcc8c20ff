"""Predictions in the browser: those of the suite, made in a process of their own."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import florilegium as fl
from florilegium.common.errors import RunError
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.spec import DatasetSpec
from florilegium.ui import predicting
from florilegium.ui.fields import MOST_FIELDS, Field, fields_of
from tests.runs import Runs
from tests.ui.made import browsing, made

KEYS = {"num-clients": 3, "rounds": 1, "participation": 1.0, "local-epochs": 1, "model": "linear", "method": "fedper"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run on images whose clients have heads of their own."""
    folder = tmp_path_factory.mktemp("runs")
    Runs(folder, {**KEYS, "model": "mlp"})("run", nodes=1)
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return a file of four images of digits."""
    file = tmp_path / "rows.npy"
    np.save(file, np.random.default_rng(1).integers(0, 255, (4, 8, 8, 1)).astype(np.uint8))
    return file


def test_the_process_returns_what_the_suite_predicts(folder: Path, rows: Path) -> None:
    question = {"run": str(folder / "run"), "client": "1", "rows": str(rows), "own_code": False}
    found = predicting._predict(question)
    expected = fl.open("run", folder).predict(rows, 1)
    assert found["head"] == ["row", *expected.columns]
    assert found["rows"] == len(expected) == 4
    assert [[float(cell) for cell in row[1:]] for row in found["table"]] == pytest.approx(expected.to_numpy(), rel=1e-5)
    assert "there is no client '9'" in predicting._predict({**question, "client": "9"})["error"]


def test_what_goes_wrong_there_is_told(tmp_path: Path, rows: Path) -> None:
    made(tmp_path, "run")
    question = {"run": str(tmp_path / "run"), "client": "", "rows": str(rows), "own_code": False}
    assert "has no checkpoint yet" in predicting._predict(question)["error"]
    reply = browsing(tmp_path).post("/runs/run/predict?kind=.pickle", content=b"x")
    assert (reply.status_code, "rows must be of one of the kinds" in reply.text) == (422, True)


def test_a_form_has_a_field_for_each_column() -> None:
    table = TableSchema(
        {"age": (50.0, 10.0)},
        {"group": ("a, b", "c"), "many": tuple(map(str, range(2000)))},
        dates={"since": (0.0, 1.0)},
    )
    spec = DatasetSpec("own", "", "table", "", "label", 2, (4,), table=table)
    assert fields_of(spec) == [
        Field("age", "number", "mean 50"), Field("since", "date", "YYYY-MM-DD"),
        Field("group", "choice", choices=("a, b", "c")), Field("many", "text"),
    ]  # fmt: skip
    assert fields_of(replace(spec, kind="pieces", x="text", table=None)) == [Field("text", "text")]
    wide = replace(table, numbers={f"x{at}": (0.0, 1.0) for at in range(MOST_FIELDS)})
    for other, why in (
        (replace(spec, table=replace(table, vectors={"v": 3})), "no single numbers"),
        (replace(spec, kind="image"), "no single numbers"),
        (replace(spec, table=wide), f"have {MOST_FIELDS + 3} columns"),
    ):
        with pytest.raises(RunError, match=why):
            fields_of(other)


def test_the_process_tells_the_fields_of_a_run(folder: Path, tmp_path: Path) -> None:
    found = predicting._predict({"run": str(folder / "run"), "own_code": False})
    assert "choose a file with rows" in found["error"]  # pictures
    run = made(tmp_path, "adult", dataset="adult", model="linear")
    (age, *_, country) = predicting._predict({"run": str(run), "own_code": False})["fields"]
    assert age == {"name": "age", "kind": "number", "hint": "mean 38.58", "choices": ()}
    assert (country["name"], country["kind"], len(country["choices"])) == ("native.country", "choice", 42)


@pytest.mark.anyio
async def test_one_prediction_at_a_time(tmp_path: Path) -> None:
    async with predicting._BUSY:
        with pytest.raises(RunError, match="another prediction is being made"):
            await predicting.predict(made(tmp_path, "run"), "", ".csv", b"", own_code=False)


@pytest.fixture
def anyio_backend() -> str:
    """Return the loop of asynchronous tests."""
    return "asyncio"


@pytest.mark.long
def test_rows_are_sent_and_predictions_shown(folder: Path, rows: Path) -> None:
    browser = browsing(folder)
    form = browser.get("/runs/run/predict").text
    assert re.findall(r'<option value="(\d)">', form) == ["0", "1", "2"]
    reply = browser.post("/runs/run/predict?client=1&kind=.npy", content=rows.read_bytes())
    assert reply.status_code == 200, reply.text
    expected = fl.open("run", folder).predict(rows, 1)
    shown = re.findall(r'data-label="class">(\d+)<', reply.text)
    assert [int(label) for label in shown] == expected["class"].tolist()
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    for content in (b"", objects.getvalue(), b"a" * 1000):
        reply = browser.post("/runs/run/predict?client=1&kind=.npy", content=content)
        assert reply.status_code == 422
        assert "is not a readable .npy file" in reply.text
    reply = browser.post("/runs/run/predict?client=1&kind=.csv", content="a,b\n1,2\n")
    assert (reply.status_code, str(folder) in reply.text) == (422, False)


@pytest.mark.long
def test_a_prediction_that_does_not_end_is_ended(folder: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "SECONDS", 0.2)
    reply = browsing(folder).post("/runs/run/predict?client=1&kind=.npy", content=rows.read_bytes())
    assert (reply.status_code, "took longer than" in reply.text) == (422, True)
