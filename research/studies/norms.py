"""Gradient norms of FedGTST runs over the rounds: mean and variance across clients (the paper's figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from florilegium.apps.reports.run_records import load_run
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import write_page, write_picture

PARTS = 4
"""Number of equal parts of a run over which the table shows means."""
FIGURES = {"norm": "mean norm", "variance": "variance of norms", "guide": "guide norm"}


def write_norms(paths: Sequence[Path], output: Path) -> str:
    """Write ``norms.md`` and ``norms.png`` about runs of ``fedgtst`` to ``output``; return the table.

    Raises:
        RunError: if a run has not completed, or is of another method.
    """
    figure = ShownFigure(11, 3.6)
    panels = figure.subplots(1, len(FIGURES))
    lines = [
        f"| run | | {' | '.join(f'part {i} of {PARTS}' for i in range(1, PARTS + 1))} |",
        "|---" * (PARTS + 2) + "|",
    ]
    for path in paths:
        summary = load_run(path).summary
        if "fedgtst" not in summary:
            raise RunError(f"run '{path.name}' is of method '{summary['method']}'; only those of fedgtst measure norms")
        course: list[dict[str, Any]] = summary["fedgtst"]["course"]
        for axes, (key, name) in zip(panels, FIGURES.items(), strict=True):
            values = [entry[key] for entry in course]
            means = [float(np.mean(part)) for part in np.array_split(values, PARTS)]
            lines.append(f"| {path.name} | {name} | " + " | ".join(f"{value:.3g}" for value in means) + " |")
            axes.plot([entry["round"] for entry in course], values, label=path.name, linewidth=1)
            axes.set(title=name, xlabel="round", yscale="log")
            axes.grid(alpha=0.3)
    panels[0].legend(frameon=False, fontsize=7)
    write_picture(figure, output / "norms.png")
    text = "\n".join(lines)
    write_page(output / "norms.md", text)
    return text
