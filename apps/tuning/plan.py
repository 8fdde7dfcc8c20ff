"""What a tuning table means for each method: the configuration of a trial, and the ranges of its keys, checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.runs.experiment import read_layers, recipe_name, resolve, short_name
from florilegium.apps.settings.configuration import PACKAGE_KEYS, TransferSettings, complete, parse
from florilegium.apps.tuning.space import Range, Tune, read_tune
from florilegium.clients.core.reports import validation
from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.settings import PARAMETER_FILES, Value, folder
from florilegium.partitions.loading import task_of
from florilegium.partitions.settings import FederationSettings
from florilegium.strategies.folder.run_folder import FREE_ON_RESUME, find_initial
from florilegium.tasks.task import Figure, Task

log = logging.getLogger("flwr")

HELD_BACK = 0.2
"""Share of the training examples that trials hold back where the recipe holds back none."""

_SECTIONS = (FederationSettings, TransferSettings)
_FIXED = FREE_ON_RESUME | {str(field.alias) for section in _SECTIONS for field in section.model_fields.values()}
_FIXED |= {"method", "validation-fraction", "evaluate-on", "device", "state-dir", PACKAGE_KEYS}
"""Common keys that are not tuned: they make the data, the budget or the measurement, or change no figure."""


@dataclass(frozen=True)
class Subject:
    """A method that is tuned.

    Attributes:
        name: its name in the study: that of the variant or method; for the recipe itself, its method's.
        method: the method.
        variant: the recipe's variant; "" for the recipe itself, or a method.
        keys: the configuration of a trial, where it differs from the defaults, without the tuned values.
        own: the recipe's own values of the tuned keys; the first trial has these.
        ranges: the values of each tuned key that are tried.
        runs: what the runs of a trial differ in, one for each seed: the seed, and the model that a run starts from.
    """

    name: str
    method: str
    variant: str
    keys: dict[str, Value]
    own: dict[str, Value]
    ranges: dict[str, Range]
    runs: list[dict[str, Value]]

    @property
    def seeds(self) -> list[int]:
        """The seeds of a trial's runs, over which its objective is a mean."""
        return [int(run["seed"]) for run in self.runs]


@dataclass(frozen=True)
class Plan:
    """A tuning of a recipe: its name, table, folder, methods, and what is learned."""

    recipe: str
    name: str
    table: Tune
    folder: Path
    subjects: list[Subject]
    task: Task

    @property
    def objective(self) -> Figure:
        """The figure that is tuned: which direction is better, and how it is shown."""
        name = self.table.figure.removeprefix("validation_")
        return self.task.figures.get(name, Figure(higher=False))

    @property
    def title(self) -> str:
        """The tuning in words, for headings."""
        return f"{recipe_name(self.recipe)}: {self.name}"


def tune_folder(recipe: str, name: str, runs_dir: str) -> Path:
    """Return the folder of a recipe's tuning ``name``."""
    return folder(runs_dir).absolute() / f"tune-{recipe_name(recipe)}-{name}"


def read_plan(recipe: str, name: str, overrides: Mapping[str, Value]) -> Plan:
    """Return a tuning, checked.

    Args:
        recipe, name: the recipe and its table ``[tune.<name>]``.
        overrides: keys that apply to all trials.

    Raises:
        ConfigurationError: if the table or the configuration of a trial is wrong; names recipe, table and key.
    """
    table = read_tune(recipe, name)
    ours = {"method", "resume", "run-name", "evaluate-on", *table.tuned, *(["seed"] if table.seeds else [])}
    for key in sorted(ours & overrides.keys()):
        raise ConfigurationError(f"--set {key}: a tuning sets it for each of its trials")
    path = tune_folder(recipe, name, str(complete(overrides)["runs-dir"]))
    try:
        subjects = [_subject(recipe, table, entry, overrides, path) for entry in table.methods]
        _check_keys(table, subjects)
        task = task_of(parse(complete(subjects[0].keys))[0])
        figure = table.figure or f"validation_{task.main}"
        if figure not in (known := validation(task)):
            raise ConfigurationError(
                f"figure: there is no '{figure}'{nearest(figure, known)} Known: {', '.join(known)}"
            )
    except ConfigurationError as error:
        raise ConfigurationError(f"recipe '{recipe}', [tune.{name}]: {error}") from error
    if any(str(complete(subject.keys)["privacy.unit"]) != "none" for subject in subjects):
        log.warning("privacy: the account of a tuned run does not include the trials, which used the same data")
    if len(budgets := {int(complete(subject.keys)["rounds"]) for subject in subjects}) > 1:
        log.warning("the methods' trials have different numbers of rounds, as in the recipe: %s", sorted(budgets))
    return Plan(recipe, name, table.model_copy(update={"figure": figure}), path, subjects, task)


def _subject(recipe: str, table: Tune, entry: str, overrides: Mapping[str, Value], path: Path) -> Subject:
    """Return the method that an entry of ``methods`` stands for."""
    variants = read_layers(recipe).variants
    if entry and entry not in variants and METHODS.problem(entry):
        known = [*variants, *METHODS]
        raise ConfigurationError(
            f"methods: '{entry}' is neither a variant of the recipe nor a method{nearest(entry, known)} Variants: "
            f"{', '.join(variants) or 'none'}; `florilegium methods` lists the methods."
        )
    variant = entry if entry in variants else ""
    budget: dict[str, Value] = {"rounds": table.rounds} if table.rounds else {}
    chosen: dict[str, Value] = {} if variant or not entry else {"method": entry}
    keys = resolve(f"{recipe}:{variant}" if variant else recipe, [], {**budget, **chosen, **overrides})
    config = complete(keys)
    method = str(config["method"])
    if METHODS[method].task != "targets":
        raise ConfigurationError(
            f"methods: '{entry or method}' predicts no targets; tuning compares methods on held-back training "
            "examples, which only such methods have"
        )
    runs: list[dict[str, Value]] = [{"seed": seed} for seed in table.seeds or [int(config["seed"])]]
    if (init := str(config["init"])) and not init.endswith(PARAMETER_FILES):
        for run in runs:
            run["init"] = str(find_initial(init, int(run["seed"]), str(config["runs-dir"])))
    keys |= runs[0] | {
        "runs-dir": str(path / "trials"), "evaluate-on": "validation", "transfer-target": "",
        "validation-fraction": config["validation-fraction"] or HELD_BACK,
    }  # fmt: skip
    for run in runs:
        parse(complete({**keys, **run}))
    own, ranges, usual = {}, {}, complete({"method": method})
    theirs = table.own.get(entry, {})
    for key, found in (table.keys | theirs).items():
        if key in theirs or not _foreign(key, method):
            real = isinstance(usual.get(key), float)
            own[key] = float(config[key]) if real else config.get(key, "")
            ranges[key] = found.of_floats() if real else found
    return Subject(entry or short_name(method), method, variant, keys, own, ranges, runs)


def _foreign(key: str, method: str) -> bool:
    """Return whether ``key`` stands in a table that is not ``method``'s."""
    table, dot, _ = key.rpartition(".")
    return bool(dot) and table != table_of(method)


def _check_keys(table: Tune, subjects: list[Subject]) -> None:
    """Raise :class:`ConfigurationError` if a key cannot be tuned, or a range has values that are not allowed."""
    names = [subject.name for subject in subjects]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(f"methods: '{twice[0]}' is given twice")
    known = {key for subject in subjects for key in complete(subject.keys)}
    for key in table.tuned:
        if key not in known:
            raise ConfigurationError(f"keys: there is no key '{key}'{nearest(key, known)}")
        if key in _FIXED or key.startswith("privacy."):
            raise ConfigurationError(
                f"keys: '{key}' cannot be tuned: all trials have the same data, budget and privacy"
            )
        if not any(key in subject.ranges for subject in subjects):
            raise ConfigurationError(f"keys: '{key}' is read by none of the methods {', '.join(names)}")
    for subject in subjects:
        if foreign := [key for key in subject.ranges if _foreign(key, subject.method)]:
            raise ConfigurationError(f"own: '{subject.name}' does not read '{foreign[0]}'; leave it out")
        if not subject.ranges:
            raise ConfigurationError(f"methods: '{subject.name}' reads none of the keys; leave it out, or add one")
        for key, found in subject.ranges.items():
            for value in found.ends:
                parse(complete({**subject.keys, key: value}))
            if subject.own[key] not in found:
                raise ConfigurationError(
                    f"keys: '{key}' is {subject.own[key]!r} for '{subject.name}' in the recipe, which its range "
                    f"({found}) lacks; include it, since the first trial has the recipe's own values"
                )
