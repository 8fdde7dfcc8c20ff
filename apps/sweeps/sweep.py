"""A recipe's sweep: one run for each variant × value of a key × seed, reported in one table and one picture.

    [sweeps.figure-3a]
    variants = ["", "fedavg", "local"]      # "" is the recipe itself
    over = "num-clients"                    # optional: without it, only variants are compared
    values = [20, 50, 100]
    seeds = [1, 2, 3]                       # default: the recipe's seed
    clients = "unseen"                      # group to report, default "seen"; "target": figures after a transfer
    figure = "validation_accuracy"          # figure to report; default: the task's main one, or "loss"
    claims = [{ paper = "Li et al. 2020", better = "", worse = "fedavg" }]      # orders of variants that papers state

Runs are named after their settings, so that an interrupted sweep continues where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.experiment import pick, read_layers, read_recipe, recipe_name
from florilegium.apps.runs.transfer import check_target
from florilegium.apps.settings.configuration import Settings, complete, defaults, parse
from florilegium.apps.sweeps.named_runs import NamedRun
from florilegium.clients.core.reports import validation
from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.settings import Section, Value
from florilegium.partitions.loading import task_of
from florilegium.tasks.task import LOSS


class Order(BaseModel):
    """A paper's claim that one variant of a sweep has a better figure than another."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    paper: str = Field(min_length=1)
    better: str
    worse: str


class Sweep(BaseModel):
    """A table ``[sweeps.<name>]`` of a recipe."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    variants: list[str] = Field(default=[""], min_length=1)
    over: str = ""
    values: list[bool | int | float | str] = []
    seeds: list[int] = []
    clients: Literal["seen", "unlabeled", "unseen", "target"] = "seen"
    figure: str = ""
    claims: list[Order] = []

    @model_validator(mode="after")
    def _is_whole(self) -> Sweep:
        sides = [side for claim in self.claims for side in (claim.better, claim.worse)]
        if other := [side for side in sides if side not in self.variants]:
            raise ValueError(f"claims: '{other[0]}' is none of variants")
        if self.claims and self.figure:
            raise ValueError("claims are of the main figure; leave out figure")
        if bool(self.over) != bool(self.values):
            raise ValueError("over and values go together")
        if self.over in ("seed", "resume", "run-name"):
            raise ValueError(f"over: a sweep cannot go over '{self.over}'; for several seeds there is seeds")
        return self


def _check(name: str, sweep: Sweep, settings: Settings, hyper: Section) -> None:
    """Raise :class:`ConfigurationError` if a run of the sweep would not produce the figure that the sweep reports."""
    lacking = {
        "unseen": "" if settings.unseen_fraction or settings.unseen_clients else "unseen-fraction",
        "unlabeled": "labeled-fraction" if settings.labeled_fraction == 1 else "",
        "target": "transfer-target" if not settings.transfer_target else "",
    }.get(sweep.clients)
    if lacking:
        raise ConfigurationError(f"sweep '{name}': clients = '{sweep.clients}', but {lacking} makes none")
    if sweep.figure.startswith("validation") and not settings.validation_fraction:
        raise ConfigurationError(
            f"sweep '{name}': figure = '{sweep.figure}', but validation-fraction is 0: nothing is held back"
        )
    known = figures_of(settings)
    if sweep.figure and sweep.figure not in known:
        raise ConfigurationError(
            f"sweep '{name}': there is no figure = '{sweep.figure}' of method '{settings.method}' and its task"
            f"{nearest(sweep.figure, known)} Known: {', '.join(known)}"
        )
    if settings.transfer_target:
        check_target(settings, hyper)


def figures_of(settings: Settings) -> list[str]:
    """Return the figures that a run's summary has of a group of clients, as far as the task says."""
    if METHODS[settings.method].task != "targets":
        return [LOSS]
    task = task_of(settings)
    whole = [f"{name}_{figure.pooled}" for name, figure in task.figures.items() if name not in task.averaged]
    return [LOSS, *task.figures, *whole, *validation(task)]


def read_sweep(recipe: str, name: str) -> Sweep:
    """Return the sweep ``name`` of a recipe.

    Raises:
        ConfigurationError: if there is no such sweep, or its table is invalid.
    """
    table = pick(name, read_layers(recipe).sweeps, f"recipe '{recipe}'", "sweep")
    try:
        return Sweep.model_validate(table)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, p['loc'])) or name}: {p['msg']}" for p in error.errors())
        raise ConfigurationError(f"recipe '{recipe}', sweep '{name}': {said}") from error


def runs_of(recipe: str, name: str, overrides: Mapping[str, Value]) -> list[NamedRun]:
    """Return every run of a sweep, checked; ``overrides`` apply to all runs, and a ``seed`` there replaces ``seeds``.

    A run is named after recipe, variant, value and seed, not after the sweep, so that sweeps can share runs.

    Raises:
        ConfigurationError: if the configuration of a run is wrong, or two runs are the same.
    """
    sweep, result = read_sweep(recipe, name), []
    for key in {sweep.over, "resume", "run-name"} & overrides.keys():
        raise ConfigurationError(f"--set {key}: a sweep sets it for each of its runs")
    values: list[Value | None] = [*sweep.values] or [None]
    for variant, value in product(sweep.variants, values):
        base = read_recipe(f"{recipe}:{variant}" if variant else recipe)
        own = {**base, **({sweep.over: value} if value is not None else {}), **overrides}
        seeds: list[Value] = [] if "seed" in overrides else [*sweep.seeds]
        for seed in seeds or [own.get("seed", defaults()["seed"])]:
            words = [recipe_name(recipe), variant, f"seed{seed}"]
            words[2:2] = [f"{sweep.over}-{value}"] if value is not None else []
            label = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(word for word in words if word))
            keys: dict[str, Value] = {**own, "seed": seed, "run-name": label}
            _check(name, sweep, *parse(complete(keys)))
            result.append(NamedRun(label, keys, variant, value))
    names = [one.name for one in result]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"recipe '{recipe}', sweep '{name}' has the run {min(twice)} twice")
    return result
