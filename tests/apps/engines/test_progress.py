"""The line of a run in a notebook's cell, and its bar on a terminal."""

from __future__ import annotations

import io
from typing import Any

import IPython.display
import pytest
from rich.console import Console

from florilegium.apps.engines.progress import in_notebook, on_terminal


class Cell:
    """The output of a cell: one line, which is replaced."""

    def __init__(self) -> None:
        self.line: dict[str, str] = {}

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.line = data


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        assert not cell.line, "one line for a run"
        cell.line = data
        return cell

    monkeypatch.setattr(IPython.display, "display", display)
    return cell


STATUS: dict[str, Any] = {"round": 3, "figures": {"seen": {"accuracy": 0.5}, "unseen": {"accuracy": 0.25}}}


def test_shows_rounds_and_figures_as_html_and_as_text(cell: Cell) -> None:
    with in_notebook("a <run>", 5) as show:
        assert cell.line["text/plain"] == "a <run>: 0/5 starting"
        show(STATUS)
    assert cell.line["text/plain"] == "a <run>: 3/5 accuracy seen 0.500  unseen 0.250"
    assert cell.line["text/html"] == (
        "<code>a &lt;run&gt;</code> <progress value='3' max='5'></progress> 3/5 accuracy seen 0.500  unseen 0.250"
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_says_where_a_run_has_ended(cell: Cell, error: type[BaseException]) -> None:
    def end() -> None:
        with in_notebook("run", 5) as show:
            show(STATUS)
            show({"state": "stopped"})
            raise error

    with pytest.raises(error):
        end()
    assert cell.line["text/plain"] == f"run: 3/5 {error.__name__}"


def test_the_bar_of_a_stopped_run_stays_where_it_was() -> None:
    output = io.StringIO()
    with on_terminal(Console(file=output, width=100))("run", 5) as show:
        show(STATUS)
        show({"state": "stopped"})
    assert " 3/5 " in output.getvalue().splitlines()[-1]
