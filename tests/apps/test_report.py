"""Reports: runs against each other on the same clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from florilegium.apps.report import Run, load_run, paired_table, plot_runs
from florilegium.common.settings import Value
from florilegium.strategies.core.run_folder import RunFolder
from tests.support import config

HERE: dict[str, Value] = {"dataset": "cifar10", "seed": 1}


def _run(label: str, accuracies: dict[tuple[str, str], float], federation: dict[str, Value] = HERE) -> Run:
    clients = [{"group": g, "client": c, "accuracy": repr(a)} for (g, c), a in accuracies.items()]
    return Run(label, {}, [], clients, federation)


def _made(clients: int, seed: int, group: str = "seen") -> dict[tuple[str, str], float]:
    return {(group, str(i)): float(a) for i, a in enumerate(np.random.default_rng(seed).uniform(size=clients))}


def _rows(runs: list[Run]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in paired_table(runs).splitlines()[2:]]


def test_differences_are_those_of_a_paired_t_test() -> None:
    a, b = _made(30, 1), _made(30, 2)
    ((label, group, count, mean, error),) = _rows([_run("a", a), _run("b", b)])
    assert (label, group, count) == ("b", "seen", "30")
    test = ttest_rel([b[key] for key in a], [a[key] for key in a])
    difference = 100 * np.mean([b[key] - a[key] for key in a])
    assert float(mean) == pytest.approx(difference, abs=0.051)
    assert float(error) == pytest.approx(difference / test.statistic, abs=0.051)


def test_clients_are_compared_with_themselves_alone() -> None:
    """In another order, of other groups, and more of them."""
    a = {("seen", "0"): 0.5, ("seen", "1"): 0.7, ("unseen", "2"): 0.0, ("unseen", "3"): 0.0, ("seen", "4"): 0.1}
    b = {("seen", "1"): 0.8, ("seen", "0"): 0.6, ("unseen", "3"): 0.25, ("unseen", "2"): 0.75, ("seen", "9"): 1.0}
    assert _rows([_run("a", a), _run("b", b)]) == [
        ["b", "seen", "2", "+10.0", "0.0"],
        ["b", "unseen", "2", "+50.0", "25.0"],
    ]


def test_other_federations_have_other_clients() -> None:
    a = _made(3, 1)
    elsewhere = _run("b", a, {**HERE, "seed": 2})
    assert paired_table([_run("a", a), elsewhere]) == ""
    assert [row[0] for row in _rows([_run("a", a), elsewhere, _run("c", a)])] == ["c"]


@pytest.mark.parametrize("b", [{}, {("seen", "0"): 0.5}, {("unseen", "0"): 0.5, ("unseen", "1"): 0.5}])
def test_without_two_common_clients_there_is_no_difference(b: dict[tuple[str, str], float]) -> None:
    assert paired_table([_run("a", _made(3, 1)), _run("b", b)]) == ""


@pytest.mark.parametrize(("method", "label"), [("fedavg", "fedavg+ft"), ("fedbabu", "fedbabu"), ("ditto", "ditto")])
def test_only_what_is_tuned_besides_is_called_so(method: str, label: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", config(method=method, **{"finetune-epochs": 1}), "")
    run.create({})
    run.write_summary({"method": method})
    assert load_run(run.path).label == label


def _measured(label: str, accuracy: float) -> Run:
    line = {"round": 1, "bytes_down": 1, "bytes_up": 1, "seen": {"accuracy": accuracy}}
    clients = [{"group": "seen", "client": c, "accuracy": str(accuracy)} for c in "0123"]
    return Run(label, {}, [line], clients, HERE)


def test_seeds_of_a_method_have_one_colour_one_entry_and_one_histogram() -> None:
    figure = plot_runs([_measured("a", 0.11), _measured("b", 0.51), _measured("a", 0.91)])
    for axes in figure.axes:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    first, second, third = (line.get_color() for line in figure.axes[0].lines)
    assert first == third != second
    steps = figure.axes[2].patches[0].get_xy()
    assert {x for x, y in steps if y == 4} == {10, 15, 90, 95}  # both seeds' clients, in bins of five points


def test_a_notebook_shows_figures_without_pyplot() -> None:
    assert plot_runs([_measured("a", 0.5)])._repr_png_().startswith(b"\x89PNG")
