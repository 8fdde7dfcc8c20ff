"""What the pages show of runs: the list, a run while it goes on, its clients, comparisons."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pools import sections
from florilegium.apps.reports.tables import pairs_table
from florilegium.apps.reports.writing import load_runs
from florilegium.ui import folders
from florilegium.ui.records import drawable, pool_of, record_of
from florilegium.ui.spread import plot_spread
from tests.ui.made import CLIENTS, browsing, line, made, write


def _cells(page: str, name: str) -> list[list[str]]:
    """Return the texts of a table of a page, row by row; ``name`` is that of its region."""
    table = re.search(rf'aria-label="{name}, table \d+".*?<tbody.*?>(.*?)</tbody>', page, re.DOTALL)
    assert table is not None, f"no table {name} in {page[:2000]}"
    rows = re.findall(r"<tr.*?>(.*?)</tr>", table[1], re.DOTALL)
    cells = [re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in row] for row in cells]


def test_runs_are_listed_the_newest_first(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two", [line(1, 0.25)], state="stopped", method="fedprox", seed=7)
    (tmp_path / "report").mkdir()
    rows = _cells(browsing(tmp_path).get("/").text, "Runs")
    assert rows == [
        ["two", "stopped", "fedprox", "digits", "7", "1", "accuracy 0.2500"],
        ["one", "completed", "fedavg", "digits", "1", "4", "accuracy 0.6000"],
    ]


def test_the_list_reads_a_run_again_only_if_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the list shows neither a run that is gone nor an older state of one that goes on."""
    read: list[str] = []
    real = folders.listed
    monkeypatch.setattr(folders, "listed", lambda path: [read.append(path.name), real(path)][1])
    paths = [made(tmp_path, name, [line(1)], state="running") for name in ("one", "two", "three")]
    browser = browsing(tmp_path)
    for _ in range(2):
        assert len(_cells(browser.get("/").text, "Runs")) == 3
    assert sorted(read) == ["one", "three", "two"]
    write(paths[1], [line(1), line(2, 0.75)], "completed", 2)
    shutil.rmtree(paths[0])
    rows = {row[0]: row for row in _cells(browser.get("/").text, "Runs")}
    assert read[3:] == ["two"]
    assert rows.keys() == {"two", "three"}
    assert rows["two"][1:] == ["completed", "fedavg", "digits", "1", "2", "accuracy 0.7500"]


def test_a_run_that_goes_on_has_pace_and_expected_end(tmp_path: Path) -> None:
    made(tmp_path, "run", [line(1), line(2, 0.5, failed=2)], state="running", rounds=32)
    page = browsing(tmp_path).get("/runs/run").text
    assert "running, round 2 of 32" in page
    assert "1 clients a second, 60 s left, until about " in page  # two of four trained in two seconds; 30 rounds of 2 s
    assert '<progress max="32" value="2"' in page
    assert _cells(page, "Last evaluation") == [["seen", "0.5000", "", "", "0.1000", "", "0.5000"]]
    assert "are written when the run ends" in page
    assert page.count("<img ") == 3  # accuracy, training loss, spread over clients


def test_the_spread_over_clients_is_drawn_over_the_rounds(tmp_path: Path) -> None:
    lines = [line(1), line(2, 0.5), line(3, 0.75)]
    lines[1]["seen"]["worst_decile"], lines[2]["seen"]["worst_decile"] = 0.25, 0.625
    run = made(tmp_path, "run", lines, state="running")
    figure = plot_spread(pool_of(record_of(run, metrics=True)))
    assert figure is not None
    (axes,) = figure.axes
    drawn = {str(one.get_label()): np.asarray(one.get_xydata()).tolist() for one in axes.lines}
    assert drawn == {"seen: mean": [[2, 50], [3, 75]], "seen: worst tenth": [[2, 25], [3, 62.5]]}
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1, band.y0, band.y1) == (2, 3, 40, 85)  # one deviation of 0.1 around 0.5 and 0.75
    assert plot_spread(pool_of(record_of(made(tmp_path, "new", [line(1)], state="running"), metrics=True))) is None


def test_clients_are_shown_with_mean_and_deciles(tmp_path: Path) -> None:
    made(tmp_path, "run")
    page = browsing(tmp_path).get("/runs/run").text
    values = 100 * np.array([*CLIENTS.values()])
    (row,) = _cells(page, "Distribution")
    deciles = [np.quantile(values, tenth / 10) for tenth in range(1, 10)]
    expected = [values.mean(), values.std(), 20.0, *deciles, 100.0]
    assert row == ["seen", "5", *(f"{value:.1f}" for value in expected)]
    assert [cells[:3] for cells in _cells(page, "Clients")] == [
        [str(i), name, "seen"] for i, name in enumerate("abcde")
    ]


def test_who_was_skipped_when_and_why(tmp_path: Path) -> None:
    failures = [{"round": n, "phase": "train", "client": "3", "reason": "OSError: disk full"} for n in (1, 4)]
    failures.append({"round": 2, "phase": "test", "client": "1", "reason": "timed out"})
    further = {"left_out": {"9": "too few examples"}, "refused": ["node 5: the owner refuses"]}
    made(tmp_path, "run", failures=failures, further={**further, "warnings": ["a tenth of all clients failed"]})
    page = browsing(tmp_path).get("/runs/run").text
    assert _cells(page, "Skipped clients") == [
        ["3", "2", "1", "4", "train", "OSError: disk full (2×)"],
        ["1", "1", "2", "2", "test", "timed out"],
    ]
    assert "2 clients did not contribute to 3 exchanges" in page
    assert 'alt="Rounds in which clients were skipped"' in page
    assert _cells(page, "Left out and refused") == [
        ["9", "left out", "too few examples"],
        ["a node", "refused", "node 5: the owner refuses"],
    ]
    assert "a tenth of all clients failed" in page


def _versions(page: str) -> dict[str, str]:
    return dict(re.findall(r'data-part="(\w+)" data-version="(\w+)"', page))


def test_a_page_gets_the_parts_that_have_changed(tmp_path: Path) -> None:
    path = made(tmp_path, "run", [line(1)], state="running")
    browser = browsing(tmp_path)
    known = _versions(browser.get("/runs/run").text)
    assert known.keys() == {"progress", "curves", "clients", "failures", "origins"}
    assert browser.get("/runs/run/parts", params=known).json() == {}
    (path / "failures.jsonl").write_text('{"round": 1, "phase": "train", "client": "7", "reason": "gone"}\n')
    changed = browser.get("/runs/run/parts", params=known).json()
    assert changed.keys() == {"progress", "failures"}
    assert "gone" in changed["failures"]["html"]
    known |= {name: part["version"] for name, part in changed.items()}
    write(path, [line(1), line(2, 0.5)], "running", 4)
    changed = browser.get("/runs/run/parts", params=known).json()
    assert "round 2 of 4" in changed["progress"]["html"]
    assert "Mean accuracy of clients over rounds" in changed["curves"]["html"]
    shutil.rmtree(path)
    assert browser.get("/runs/run/parts", params=known).status_code == 404
    assert browser.get("/runs/run").status_code == 404


def test_a_comparison_is_the_report_of_the_suite(tmp_path: Path) -> None:
    paths = [made(tmp_path, "one"), made(tmp_path, "two", method="fedprox", clients={**CLIENTS, "a": 0.9, "b": 0.45})]
    made(tmp_path, "begun", [line(1)], state="stopped")
    page = browsing(tmp_path).get("/compare?run=one&run=two&run=begun").text
    (section,) = sections(load_runs(paths)[0])
    assert _cells(page, "Paired differences") == [list(row) for row in pairs_table(pairs(section)).rows]
    assert [row[0] for row in _cells(page, "Final figures")] == ["fedavg", "fedprox"]
    assert "Not in this report: run begun has not completed (it stopped in round 1)" in page
    assert 'alt="Training examples of each client and class"' not in page  # their data are not read
    chosen = browsing(tmp_path).get("/compare")
    assert chosen.status_code == 422
    assert "choose 1 to 50 runs (found: 0)" in chosen.text


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"status.json": None}, "is not the folder of a run that has begun"),
        ({"status.json": b'{"state": "run'}, "is not the folder of a run that has begun"),
        ({"status.json": b'{"state": "running", "rounds": "many"}'}, "content than expected"),
        ({"metrics.jsonl": b'{"round": 1, "sec\n{"round": 2}\n'}, "metrics.jsonl is damaged in line 1"),
        ({"metrics.jsonl": b'{"round": 1, "seconds": 1}\n{"round": 2, "seconds": "x"}\n'}, "content than expected"),
        ({"summary.json": b"[" * 100_000}, "cannot be shown"),
        ({"clients.csv": b"client,group,accuracy\n0,seen,much\n"}, "accuracy in line 2 is no number"),
        ({"config.toml": b"\xff\xfe"}, "config.toml is not UTF-8"),
        ({"failures.jsonl": b"[1]\n"}, "content than expected"),
        ({"metrics.prom": b"florilegium_clients{ 3\n"}, "content than expected"),
    ],
)
def test_a_damaged_file_spoils_no_other_part(tmp_path: Path, damage: dict[str, bytes | None], words: str) -> None:
    path = made(tmp_path, "run")
    for name, content in damage.items():
        (path / name).unlink(missing_ok=True)
        if content is not None:
            (path / name).write_bytes(content)
    reply = browsing(tmp_path).get("/runs/run")
    assert reply.status_code == 200
    assert words in html.unescape(reply.text)
    assert str(path) not in reply.text
    assert 1 <= reply.text.count("This part cannot be shown") <= 4
    assert browsing(tmp_path).get("/").status_code == 200


@pytest.mark.parametrize("accuracy", [math.inf, math.nan, -1e308, 10**15])
def test_numbers_that_no_run_has_are_shown_or_explained(tmp_path: Path, accuracy: float) -> None:
    path = made(tmp_path, "run", [line(1, 0.5), {**line(2, accuracy), "round": 10**9}])
    (path / "clients.csv").write_text(f"client,group,accuracy\n0,seen,{accuracy}\n1,seen,0.5\n")
    for address in ("/runs/run", "/compare?run=run", "/"):
        assert browsing(tmp_path).get(address).status_code == 200


def test_names_are_no_formulas(tmp_path: Path) -> None:
    """What stands between dollars is a formula for matplotlib, which may take any time to draw."""
    path = made(tmp_path, "run")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "task": {"name": r"$\frac{1}{2}$", "pooled": "x"}}))
    assert "is no plain word" in browsing(tmp_path).get("/runs/run").text
    assert drawable(r"_$\alpha$") == r"\$/alpha\$"


def test_a_run_that_has_just_begun_and_one_of_an_earlier_version(tmp_path: Path) -> None:
    begun = made(tmp_path, "begun", [], state="running")
    for name in ("metrics.jsonl", "failures.jsonl"):
        (begun / name).unlink()
    older = made(tmp_path, "older", [{"round": 5, "seconds": 9.0, "seen": {"accuracy": 0.5}}])
    (older / "origins.json").unlink()
    (older / "config.toml").write_text('method = "fedavg"\ndataset = "digits"\nseed = 1\n')
    for name in ("begun", "older"):
        page = browsing(tmp_path).get(f"/runs/{name}").text
        assert "cannot be shown" not in page
    assert "running, round 0 of 4" in browsing(tmp_path).get("/runs/begun").text


def test_other_tasks_have_their_own_figures(tmp_path: Path) -> None:
    """A run on numbers while it goes on: its main figure is the error, which is no share; the largest is the worst."""
    task: dict[str, Any] = {"name": "rmse", "pooled": "rmse_pooled", "higher": False, "percent": False}
    lines = [{**line(n), "evaluation_seconds": 0.1, "seen": {"rmse": 3.0 / n, "loss": 9.0}} for n in (1, 2)]
    path = made(tmp_path, "run", lines, further={"task": task})
    (path / "clients.csv").write_text("client,name,group,rmse\n0,,seen,1.5\n1,,seen,2.5\n")
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({**status, "task": task}))
    page = browsing(tmp_path).get("/runs/run").text
    assert _cells(page, "Clients") == [["1", "seen", "2.5000"], ["0", "seen", "1.5000"]]
    assert _cells(page, "Distribution")[0][:5] == ["seen", "2", "2.000", "0.500", "1.500"]
    assert 'alt="Mean rmse of clients over rounds"' in page


@pytest.mark.parametrize("name", ["page.js", "ui.js"])
def test_scripts_can_be_parsed(name: str, tmp_path: Path) -> None:
    """By Node, where it is installed; with an error in it, a browser carries out nothing of a script."""
    text = browsing(tmp_path).get(f"/{name}").text
    assert text.startswith("// ")
    if (node := shutil.which("node")) is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = subprocess.run([node, "--check", tmp_path / name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
