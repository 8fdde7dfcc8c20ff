"""The result of a tuning as a file, ``tuned.toml``, and the runs that use it."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from florilegium.apps.methods.registry import table_of
from florilegium.apps.origins.version import version
from florilegium.apps.runs.experiment import read_assignments, recipe_name, resolve
from florilegium.apps.settings.configuration import complete, defaults
from florilegium.apps.tuning.plan import tune_folder
from florilegium.apps.tuning.results import Result, Tuning
from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.files import write_text
from florilegium.common.places import read_utf8
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import FREE_ON_RESUME, differing_settings

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
        "rounds": config["rounds"], "seed": config["seed"],
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
