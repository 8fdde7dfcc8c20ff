"""Errors of the parameters that ``mdm`` fits to a known distribution, over rounds (Scott, thesis, 3.2, A.3, A.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilegium.apps.settings.configuration import read_settings
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import write_page, write_picture
from florilegium.partitions.mdm_params import NAMED
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import read_checkpoint

Array = NDArray[np.float64]


def normalised_error(found: Array, truth: Array) -> float:
    """Return the error NMSE(found, truth) = ‖(found − truth)/truth‖ (equation A.31)."""
    return float(np.linalg.norm((found - truth) / truth))


def errors(run: Path) -> tuple[str, Array, Array]:
    """Return the name of a run's true distribution, and the errors of A and of τ after every round, (T,) each.

    Fitted components are matched to true ones by the permutation with the smallest error of A after the last round.

    Raises:
        RunError: if the run is not of method ``mdm``, its ``mdm-params`` is not a named distribution, or the number of
            components differs from that distribution's.
    """
    settings, hyper = read_settings(run)
    name, history = settings.mdm_params, read_checkpoint(run).state
    if not isinstance(hyper, MDMHyper) or name not in NAMED or hyper.components != str(len(NAMED[name][0])):
        raise RunError(
            f"run {run} has not fitted a named distribution (mdm-params) with as many components as this has"
        )
    τ, α = (np.array(value) for value in NAMED[name])
    first = read_summary(run)["mdm"]["mixture"] * len(τ)  # the best start
    rows = range(first, first + len(τ))
    last = history["alpha"][-1]
    order = list(min(permutations(rows), key=lambda p: normalised_error(last[list(p)], α)))
    return (
        name,
        np.array([normalised_error(step[order], α) for step in history["alpha"]]),
        np.array([normalised_error(step[order], τ) for step in history["tau"]]),
    )


def write_recovery(runs: Sequence[Path], output: Path) -> str:
    """Write ``recovery.md`` and ``recovery.png`` about ``runs`` to ``output``; return the table.

    Besides the errors, the table shows the root mean square of the relative errors of the α_kj.
    """
    found = [errors(run) for run in runs]
    lines = ["| law | error of A | relative error of each α | error of τ |", "|---|---|---|---|"]
    figure = ShownFigure(8, 3.5)
    left, right = figure.subplots(1, 2)
    for name, of_alpha, of_tau in found:
        numbers = np.size(NAMED[name][1])
        lines.append(f"| {name} | {of_alpha[-1]:.3f} | {of_alpha[-1] / np.sqrt(numbers):.1%} | {of_tau[-1]:.3f} |")
        rounds = np.arange(1, len(of_alpha) + 1)
        left.plot(rounds, of_alpha, label=name)
        right.plot(rounds, of_tau, label=name)
    left.set(xlabel="round", ylabel="normalised error of A", yscale="log")
    right.set(xlabel="round", ylabel="normalised error of τ")
    left.legend(frameon=False)
    write_picture(figure, output / "recovery.png")
    text = "\n".join(lines)
    write_page(output / "recovery.md", text)
    return text
