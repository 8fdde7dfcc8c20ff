"""What a tuning has found: each method's trials, the best of them, ``tuned.toml`` and the runs that use it."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import tomli_w

from florilegium.apps.methods.registry import table_of
from florilegium.apps.origins.package import version
from florilegium.apps.runs.experiment import read_assignments, recipe_name, resolve
from florilegium.apps.settings.configuration import complete, defaults, parse
from florilegium.apps.tuning.plan import Plan, Subject, tune_folder
from florilegium.common.errors import ConfigurationError, RunError, nearest
from florilegium.common.files import write_text
from florilegium.common.places import read_utf8
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import FREE_ON_RESUME, differing_settings

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Attributes:
        number: 0 is the recipe's own values.
        state: whether all its runs had their rounds, or one was ended early because it was bad, or failed.
        values: the tuned keys.
        objective: the figure after the last evaluation, if all runs completed a mean over them; None if one failed.
        clients: number of clients whose mean the figure is.
        rounds: number of rounds its last run had.
        reason: why it failed.
    """

    number: int
    state: State
    values: dict[str, Value]
    objective: float | None
    clients: int
    rounds: int
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """The trials of one method.

    Attributes:
        subject: the method.
        trials: all of them, in their order.
        importances: share of each key in the objective's variance over the completed trials; {} if unknown.
        maximised: whether a larger objective is better.
    """

    subject: Subject
    trials: list[Trial]
    importances: dict[str, float]
    maximised: bool

    @property
    def best(self) -> Trial | None:
        """The completed trial with the best objective, the earliest of equal ones; None if none has completed."""
        done = [trial for trial in self.trials if trial.state == "complete"]
        return max(done, key=self._goodness) if done else None

    @property
    def failure(self) -> str:
        """Why no trial has completed: the reason of the first that failed."""
        return next((trial.reason for trial in self.trials if trial.reason), "all were ended early")

    def curve(self) -> list[float | None]:
        """Return the best objective of the completed trials so far, after each trial."""
        best: list[float | None] = []
        for trial in self.trials:
            here = trial.objective if trial.state == "complete" else None
            known = [value for value in (here, best[-1] if best else None) if value is not None]
            best.append((max if self.maximised else min)(known) if known else None)
        return best

    def count(self, state: State) -> int:
        """Return the number of trials in ``state``."""
        return sum(trial.state == state for trial in self.trials)

    def at_edge(self) -> dict[str, Value]:
        """Return the chosen values at an end of their range beyond which the key allows others."""
        if self.best is None:
            return {}
        found = {}
        for key, value in self.best.values.items():
            outside = self.subject.ranges[key].beyond(value)
            if outside is not None and _allowed({**self.subject.keys, key: outside}):
                found[key] = value
        return found

    def _goodness(self, trial: Trial) -> float:
        assert trial.objective is not None
        return trial.objective if self.maximised else -trial.objective


@dataclass(frozen=True)
class Tuning:
    """A tuning that has been carried out: what was planned, and each method's result."""

    plan: Plan
    results: list[Result]

    def warnings(self) -> list[str]:
        """Return in words which chosen values lie at an edge, and which methods have no choice."""
        words = [
            f"{result.subject.name}: {key} = {shown(value)} is at the edge of its range "
            f"({result.subject.ranges[key]}); a better value may lie outside"
            for result in self.results
            for key, value in result.at_edge().items()
        ]
        for result in self.results:
            if result.best is None:
                words.append(f"{result.subject.name}: none of {len(result.trials)} trials completed: {result.failure}")
        return words

    def require_choices(self) -> None:
        """Raise :class:`RunError` if no trial of a method has completed, so that nothing was chosen for it."""
        if without := [result.subject.name for result in self.results if result.best is None]:
            raise RunError(f"no trial of {', '.join(without)} completed; {self.plan.folder / 'report.md'} says why")


def _allowed(keys: dict[str, Value]) -> bool:
    try:
        parse(complete(keys))
    except ConfigurationError:
        return False
    return True


def shown(value: Value) -> str:
    """Return a key's value with at most four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


log = logging.getLogger("flwr")

FILE = "tuned.toml"
_FREE = FREE_ON_RESUME | {"seed", "validation-fraction", "evaluate-on", "transfer-target"}
"""Keys in which a run may differ from the trials."""


def write_tuned(tuning: Tuning) -> None:
    """Write ``tuned.toml`` to the tuning's folder: the chosen values of each method, and how they were found."""
    plan = tuning.plan
    about = {
        "recipe": recipe_name(plan.recipe), "tune": plan.name, "figure": plan.table.figure,
        "date": time.strftime("%Y-%m-%d"), "florilegium": version(),
        **{name: metadata.version(name) for name in ("optuna", "torch", "flwr")},
    }  # fmt: skip
    methods = {result.subject.name: _entry(result) for result in tuning.results if result.best}
    write_text(plan.folder / FILE, tomli_w.dumps({**about, "methods": methods}))


def _entry(result: Result) -> dict[str, Any]:
    subject, best, first = result.subject, result.best, result.trials[0]
    assert best is not None
    config = complete(subject.keys)
    usual = defaults()
    return {
        "method": subject.method, "variant": subject.variant, "objective": best.objective,
        **({} if first.objective is None else {"objective-of-recipe": first.objective}),
        "trials": len(result.trials), "pruned": result.count("pruned"), "failed": result.count("failed"),
        "rounds": config["rounds"], "seeds": subject.seeds,
        "keys": best.values,
        "ranges": {key: found.model_dump(exclude_defaults=True) for key, found in subject.ranges.items()},
        "settings": {key: value for key, value in config.items()
                     if usual.get(key) != value and key not in best.values and key not in _FREE},
    }  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """The chosen values of a tuning, as read from its file.

    Attributes:
        recipe: the recipe to which they are applied.
        path: the file.
        methods: the file's entry of each method.
    """

    recipe: str
    path: Path
    methods: dict[str, dict[str, Any]]

    def run(self, method: str, assignments: Sequence[str], options: Mapping[str, Value]) -> dict[str, Value]:
        """Return the configuration of a method's run: recipe, ``--set``, options and chosen values.

        Raises:
            ConfigurationError: if the method was not tuned, or ``--set`` or an option names a chosen key.
        """
        if method not in self.methods:
            raise ConfigurationError(
                f"--tuned: '{method}' was not tuned in {self.path}{nearest(method, self.methods)} A fair comparison "
                f"needs all methods tuned alike. Tuned: {', '.join(self.methods) or 'none'}."
            )
        entry = self.methods[method]
        if both := entry["keys"].keys() & {**read_assignments(assignments), **options}.keys():
            raise ConfigurationError(f"{min(both)}: --tuned sets it for '{method}'; leave one of them out")
        recipe = f"{self.recipe}:{entry['variant']}" if entry["variant"] else self.recipe
        overrides = resolve(recipe, assignments, {**options, "method": entry["method"], **entry["keys"]})
        before = complete({**entry["settings"], **entry["keys"]})
        now = {**complete(overrides), **{key: before[key] for key in _FREE}}
        if differing := differing_settings(before, now, table_of(entry["method"])):
            log.warning("%s was tuned with other settings. %s", method, "; ".join(differing))
        return overrides


def read_tuned(recipe: str | Path | None, tuned: str, runs_dir: str) -> Chosen:
    """Return the chosen values of a tuning.

    Args:
        recipe: the recipe to apply them to.
        tuned: the name of a table ``[tune.<name>]`` of it, or a file written by another tuning.
        runs_dir: folder of runs, in which the tuning's own folder is.

    Raises:
        ConfigurationError: if there is no such result.
    """
    if not recipe:
        raise ConfigurationError("--tuned needs a recipe: the values were chosen for one")
    path = Path(tuned) if tuned.endswith(".toml") else tune_folder(str(recipe), tuned, runs_dir) / FILE
    try:
        methods = tomllib.loads(read_utf8(path))["methods"]
        for entry in methods.values():
            {entry[name] for name in ("method", "variant")}, {**entry["keys"], **entry["settings"]}
    except OSError as error:
        raise ConfigurationError(
            f"--tuned: there is no {path}; first carry out `florilegium tune {recipe} {tuned}` to its end"
        ) from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--tuned: {path} is not the result of a tuning: {error!r}") from error
    return Chosen(str(recipe), path, methods)
