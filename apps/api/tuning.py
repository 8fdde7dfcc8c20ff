"""Tune methods from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from florilegium.apps.api.keywords import read_keywords
from florilegium.apps.engines.base import Means
from florilegium.apps.engines.progress import silent, suitable
from florilegium.apps.runs.experiment import resolve
from florilegium.common.settings import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from florilegium.apps.tuning import results as records


class Tuning:
    """A tuning that has been carried out.

    Args:
        found: its trials.

    Attributes:
        path: its folder, with ``tuned.toml`` for :func:`florilegium.compare`, and the page ``report.md``.
    """

    def __init__(self, found: records.Tuning) -> None:
        self._found = found
        self.path: Path = found.plan.folder

    def __repr__(self) -> str:
        return f"<florilegium tuning {self.path.name}: {len(self.table)} trials>"

    @property
    def table(self) -> pd.DataFrame:
        """All trials: method, number (0: the recipe's own values), state, objective, rounds, and each tuned key."""
        rows: list[dict[str, Value | None]] = [
            {"method": result.subject.name, "trial": one.number, "state": one.state, "objective": one.objective,
             "rounds": one.rounds, "reason": one.reason, **one.values}
            for result in self._found.results
            for one in result.trials
        ]  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def best(self) -> dict[str, dict[str, Value]]:
        """The chosen values of each method; a method is missing if none of its trials completed."""
        return {result.subject.name: dict(result.best.values) for result in self._found.results if result.best}

    def plot(self) -> Figure:
        """Return a figure: the best objective over the trials of each method, and the importances of the keys."""
        from florilegium.apps.tuning.report import plot_tuning

        return plot_tuning(self._found)

    def _repr_markdown_(self) -> str:
        from florilegium.apps.tuning.report import choices
        from florilegium.common.pages import markdown

        return markdown(choices(self._found))


def tune(
    recipe: str | Path,
    name: str,
    *,
    engine: str = "auto",
    workers: int = 1,
    progress: bool = True,
    **keys: Any,
) -> Tuning:
    """Tune methods with equal budgets on held-out training examples, as a recipe's table ``[tune.<name>]`` defines.

    The same call continues a tuning that was stopped; one that is complete is only read (docs/tuning.md).

    Args:
        recipe: a recipe's name, or a TOML file.
        name: one of the recipe's tables tune.<name>.
        engine, workers, progress, keys: as for :func:`florilegium.run`; the keys apply to all trials.

    Raises:
        ConfigurationError: before the first trial, if the table or the configuration of a trial is wrong, if an earlier
            study had other settings, or if Optuna is not installed.
        RunError: if another process is working on the study, or its file is damaged.
    """
    from florilegium.apps.tuning.trials import tune as carry_out

    overrides = resolve(None, [], read_keywords(keys))
    means = Means(engine, workers, suitable() if progress else silent)
    return Tuning(carry_out(str(recipe), name, overrides, means))
