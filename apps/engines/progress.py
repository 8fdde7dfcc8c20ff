"""Progress of a run on a terminal, in a notebook, or nowhere: a bar, and a line for every evaluation."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from florilegium.strategies.folder.main_figure import read_main

Show = Callable[[Mapping[str, Any]], None]
"""Receives the contents of ``status.json`` whenever they change."""
Display = Callable[[str, int], Any]
"""Context manager of a title and a number of rounds, in which a :data:`Show` is called."""


def figures_of(status: Mapping[str, Any]) -> str:
    """Return the figures of the last evaluation in a few words: main figures by group of clients, or losses."""
    figures = status.get("figures") or {}
    name = read_main(status).shown({name: 0 for values in figures.values() for name in values})
    shown = [f"{group} {values[name]:.3f}" for group, values in figures.items() if name in values]
    return f"{name} {'  '.join(shown)}" if shown else ""


def on_terminal(console: Console) -> Display:
    """Return a display that prints the title, draws a progress bar, and prints a line for every evaluation."""

    @contextmanager
    def display(title: str, rounds: int) -> Iterator[Show]:
        columns = (
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"),
        )  # fmt: skip
        last = 0

        def show(status: Mapping[str, Any]) -> None:
            nonlocal last
            if "round" not in status:  # how the run ended; the bar stays where it was
                return
            text, evaluated = figures_of(status), int(status.get("evaluated", 0))
            bar.update(task, completed=status["round"], figures=text)
            if text and evaluated > last:
                last = evaluated
                bar.console.print(f"round {evaluated:>5}   {text}", highlight=False)

        console.print(title, highlight=False, markup=False, soft_wrap=True)  # a narrow terminal would cut it in the bar
        with Progress(*columns, console=console, refresh_per_second=2) as bar:
            task = bar.add_task("", total=rounds, figures="starting")
            yield show

    return display


@contextmanager
def in_notebook(title: str, rounds: int) -> Iterator[Show]:
    """Show one line in the output of a notebook's cell, which is kept up to date."""
    from IPython.display import display

    def line(status: Mapping[str, Any], error: str = "") -> dict[str, str]:
        done, text = int(status.get("round", 0)), error or figures_of(status) or "starting"
        bar = (
            f"<code>{html.escape(title)}</code> <progress value='{done}' max='{max(1, rounds)}'></progress> "
            f"{done}/{rounds} {html.escape(text)}"
        )
        # Plain text is for viewers of notebooks that show no HTML.
        return {"text/html": bar, "text/plain": f"{title}: {done}/{rounds} {text}"}

    last: Mapping[str, Any] = {}

    def show(status: Mapping[str, Any]) -> None:
        nonlocal last
        if "round" not in status:  # how the run ended, which the error says too
            return
        last = status
        handle.update(line(status), raw=True)

    handle = display(line({}), raw=True, display_id=True)
    try:
        yield show
    except BaseException as error:  # also Ctrl-C
        handle.update(line(last, type(error).__name__), raw=True)
        raise


@contextmanager
def silent(title: str, rounds: int) -> Iterator[Show]:
    """Show nothing."""
    yield lambda status: None


def numbered(display: Display, total: int) -> Display:
    """Return a display for several runs, one after the other: each title says which of ``total`` it is."""
    number = count(1)
    return lambda title, rounds: display(f"{next(number)} of {total}: {title}", rounds)


def suitable() -> Display:
    """Return the display for the present surroundings: a notebook, or a terminal's standard error."""
    try:
        from IPython import get_ipython
    except ImportError:
        return on_terminal(Console(stderr=True))
    shell = get_ipython()
    return in_notebook if type(shell).__name__ == "ZMQInteractiveShell" else on_terminal(Console(stderr=True))
