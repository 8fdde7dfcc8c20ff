"""Build and check a run's configuration from a recipe, ``--set`` assignments and options; carry out the run."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from florilegium.apps.engines.base import Engine, Means, OnEvaluation
from florilegium.apps.engines.progress import Display
from florilegium.apps.runs.recipes import find_recipe
from florilegium.apps.runs.run_list import resume_command
from florilegium.apps.settings.configuration import Settings, complete, defaults, parse
from florilegium.common.errors import ConfigurationError, DataError, FileError, nearest
from florilegium.common.places import read_utf8
from florilegium.common.settings import PARAMETER_FILES, Value, folder
from florilegium.common.toml import flatten
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.registry import file_keys
from florilegium.partitions.sources.fitted_scales import FILE as SCALES
from florilegium.partitions.sources.hub import PREFIX
from florilegium.partitions.split_files import file_hash
from florilegium.strategies.folder.claim import LOCK, refuse_if_claimed
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import find_run, has_results, read_config

log = logging.getLogger("flwr")

T = TypeVar("T")
DATASET_KEYS = ("dataset", "transfer-target")
FOLDERS = ("data-dir", "cache-dir", "runs-dir", "state-dir")


def read_recipe(name: str) -> dict[str, Value]:
    """Return the keys of a recipe: a path to a TOML file, or the name of one of ``apps/recipes``.

    ``extends = "<recipe>"`` starts from another recipe's keys. ``<recipe>:<variant>`` adds the keys of the table
    ``[variants.<variant>]`` of the recipe or of one it extends. In ``init``, ``{recipe}`` stands for the recipe's own
    name, so that a recipe that extends another starts from its own runs.

    Raises:
        ConfigurationError: if there is no such recipe or variant, or the file is not valid TOML.
    """
    stem, _, variant = name.partition(":")
    recipe = read_layers(stem)
    keys = recipe.keys | (pick(variant, recipe.variants, f"recipe '{stem}'", "variant") if variant else {})
    return keys | ({"init": str(keys["init"]).replace("{recipe}", recipe_name(stem))} if "init" in keys else {})


def recipe_name(recipe: str) -> str:
    """Return the name of a recipe in runs and reports, such as ``ppfe-cifar10-dir0.3``, from its name or path."""
    return Path(recipe).name.removesuffix(".toml")


def pick(word: str, table: Mapping[str, T], where: str, what: str) -> T:
    """Return ``table[word]``, or raise :class:`ConfigurationError` that suggests the most similar entry."""
    if word not in table:
        raise ConfigurationError(
            f"{where} has no {what} '{word}'{nearest(word, table)} Known: {', '.join(table) or 'none'}."
        )
    return table[word]


@dataclass(frozen=True)
class Layers:
    """A recipe merged with those it extends.

    Attributes:
        keys: its keys.
        variants: each variant's keys.
        sweeps, tune: its sweeps and tuning tables as in TOML.
        published: accuracies published for its methods, by source, as in TOML; not those of recipes it extends.
    """

    keys: dict[str, Value]
    variants: dict[str, dict[str, Value]]
    sweeps: dict[str, dict[str, Any]]
    tune: dict[str, dict[str, Any]]
    published: dict[str, dict[str, Any]]


_TABLES = ("variants", "sweeps", "tune", "published")
"""Tables of a recipe that are not keys."""


def read_layers(name: str, beside: Path = Path(), seen: tuple[Path, ...] = ()) -> Layers:
    """Read a recipe and those it extends; a recipe overrides the one it extends, in a tuning table entry by entry.

    Ranges of single methods (``own``) are inherited for the methods that the table still tunes.

    Args:
        name: a recipe's name or path.
        beside: folder of the recipe that extends this one; it is searched first.
        seen: recipes already read, to detect a cycle.

    Raises:
        ConfigurationError: if there is no such recipe, it is not valid TOML, or one of ``_TABLES`` has no tables.
    """
    path, content = _read_toml(name, beside)
    base, own = content.pop("extends", ""), {what: content.pop(what, {}) for what in _TABLES}
    if path in seen or not isinstance(base, str):
        raise ConfigurationError(f"{path}: extends must name another recipe, and not one that extends this")
    for what, tables in own.items():
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise ConfigurationError(f"{path}: {what} must be tables, such as [{what}.fast]")
    under = read_layers(base, path.parent, (*seen, path)) if base else Layers({}, {}, {}, {}, {})
    variants = {variant: flatten(keys) for variant, keys in own["variants"].items()}
    tune = under.tune | {table: _over(under.tune.get(table, {}), entries) for table, entries in own["tune"].items()}
    keys, sweeps = under.keys | flatten(content), under.sweeps | own["sweeps"]
    return Layers(keys, under.variants | variants, sweeps, tune, own["published"])


def _over(under: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tuning table over the one that it extends: of that one's ranges of single methods, those of its own."""
    table = {**under, **entries}
    ranges, own, methods = under.get("own"), entries.get("own", {}), table.get("methods", [""])
    if not (isinstance(ranges, dict) and isinstance(own, dict) and isinstance(methods, list)):
        return table  # whoever reads the table says what is wrong with it
    return table | {"own": {entry: ranges[entry] for entry in ranges if entry in methods} | own}


def offered(recipe: str | Path | None) -> list[Mapping[str, Value]]:
    """Return the configurations that a recipe offers: its own and those it extends, also with each of their variants.

    Raises:
        ConfigurationError: as :func:`read_layers`.
    """
    name, beside, found = str(recipe or "").partition(":")[0], Path(), list[Mapping[str, Value]]()
    while name:
        layers = read_layers(name, beside)
        found += [layers.keys, *(layers.keys | variant for variant in layers.variants.values())]
        path, content = _read_toml(name, beside)
        name, beside = content.get("extends", ""), path.parent
    return found


def _read_toml(name: str, beside: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the contents of a recipe, searched in the folder ``beside`` and in ``apps/recipes``."""
    path = find_recipe(name, beside)
    try:
        return path, tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error


def read_assignments(assignments: Sequence[str]) -> dict[str, Value]:
    """Parse assignments ``key=value``.

    A value is read as TOML, or as Python writes numbers and truth (``.5``, ``5.``, ``007``, ``True``); otherwise it is
    a text.

    Raises:
        ConfigurationError: for an assignment without "=", and for Python's ``None``.
    """
    result: dict[str, Value] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {assignment}: expected key=value, such as --set rounds=10")
        if text.strip() == "None":
            raise ConfigurationError(
                f'--set {assignment}: None is not a value; leave the key out for its default, or give ""'
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = _as_python_writes(text.strip())
        # The value of a string key may look like a number: run-name=7.
        usual = defaults().get(key.strip())
        word = isinstance(usual, str) and key.strip() != "classes-per-client"
        if isinstance(value, list) and any(map(str.isdigit, str(usual))):
            value = ",".join(map(str, value))  # Flower's run configuration has no lists; numbers are joined
        known = isinstance(value, bool | int | float | str)
        result[key.strip()] = text.strip() if not known or (word and not isinstance(value, str)) else value
    return result


def _as_python_writes(text: str) -> bool | int | float | str:
    """Return the number or truth value that ``text`` is in Python, though not in TOML; else ``text`` itself."""
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) else text


def resolve(recipe: str | Path | None, assignments: Sequence[str], options: Mapping[str, Value]) -> dict[str, Value]:
    """Return the given keys: recipe, then ``--set``, then options, later ones override; folders become absolute.

    With ``resume``, the configuration of the resumed run comes first, so that its keys need not be repeated. The hash
    of a split file is added, so that a resumed run notices if the file has changed.
    """
    overrides = {**(read_recipe(str(recipe)) if recipe else {}), **read_assignments(assignments), **options}
    if overrides.get("resume"):
        earlier = find_run(str(overrides["resume"]), str(overrides.get("runs-dir", defaults()["runs-dir"])))
        overrides = {**read_config(earlier), "runs-dir": str(earlier.parent), "run-name": "", **overrides}
        overrides["resume"] = earlier.name
    partitioner = str(overrides.get("partitioner", defaults()["partitioner"]))
    for key in (*FOLDERS, *file_keys(partitioner)):
        if overrides.get(key):
            overrides[key] = str(folder(str(overrides[key])).absolute())
    if partitioner == "file" and overrides.get("file.path") and not overrides.get("file.hash"):
        overrides["file.hash"] = file_hash(Path(str(overrides["file.path"])))
    for key in DATASET_KEYS:
        if is_path(name := str(overrides.get(key, ""))):
            overrides[key] = str(folder(name).resolve())
    if (run := str(overrides.get("fitted-scales", ""))) and not run.lstrip().startswith("{"):
        overrides["fitted-scales"] = _scales_of(run, str(overrides.get("runs-dir", defaults()["runs-dir"])))
    if str(overrides.get("init", "")).endswith(PARAMETER_FILES):
        overrides["init"] = str(folder(str(overrides["init"])).absolute())
    return {key: _whole(key, value) for key, value in overrides.items()}


def _scales_of(run: str, runs_dir: str) -> str:
    """Return the scales that a run of `describe` has fitted, as text; raise :class:`ConfigurationError` without."""
    path = find_run(run, runs_dir) / SCALES
    if not path.is_file():
        raise ConfigurationError(f"fitted-scales: there is no {path}; name a run of method 'describe'")
    return json.dumps(json.loads(path.read_text(encoding="utf-8")), separators=(",", ":"), ensure_ascii=False)


def _whole(key: str, value: Value) -> Value:
    """Return 1000 for 1e3 if the key is a whole number."""
    wanted = type(defaults().get(key)) is int
    return int(value) if wanted and isinstance(value, float) and value.is_integer() else value


def short_name(name: str) -> str:
    """Return the name of a method for tables and folders: without the package of one that is not the suite's own."""
    return name.rpartition(":")[2]


def is_path(dataset: str) -> bool:
    """Return whether a value of the key ``dataset`` is the path of a folder: it has a slash, or starts with . or ~."""
    return not dataset.startswith(PREFIX) and ("/" in dataset or dataset.startswith((".", "~")))


def run_folder(settings: Settings) -> Path:
    """Return the folder of the run; without ``run-name`` or ``resume`` it is named after time, method and dataset."""
    if settings.resume:
        return find_run(settings.resume, settings.runs_dir)
    if settings.run_name:
        path = folder(settings.runs_dir) / settings.run_name
        if has_results(path):
            raise ConfigurationError(f"run-name: there is already a run {path}. Choose another name, or resume it.")
        return path
    words = [time.strftime("%Y%m%d-%H%M%S"), short_name(settings.method), dataset_of(settings).name, str(os.getpid())]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))
    return _new_folder(folder(settings.runs_dir), stem)


def _new_folder(runs_dir: Path, stem: str) -> Path:
    """Make a new folder named ``stem``, or ``stem`` with a number if other processes or threads have made that."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = runs_dir / (stem if number == 1 else f"{stem}-{number}")
            with suppress(FileExistsError):
                path.mkdir()
                break
    except OSError as error:
        raise FileError(f"runs-dir: no folder can be made in {runs_dir} ({error.strerror}); name another") from error
    return path


def run_experiment(engine: Engine, overrides: Mapping[str, Value], display: Display) -> Path:
    """Carry out one run and return its folder.

    Args:
        engine: carries it out: a Flower simulation, or this process.
        overrides: the run configuration, where it differs from the defaults.
        display: shows the progress.

    Raises:
        ConfigurationError: before the run starts, if its configuration is wrong.
        RunError: if the run failed.
        KeyboardInterrupt: if it was stopped; the message says how to go on.
    """
    settings, hyper = parse(complete(overrides))
    if settings.transfer_target:
        from florilegium.apps.runs.transfer import (  # imports torch, which takes seconds; not needed otherwise
            check_target,
            transfer_once,
        )

        check_target(settings, hyper)
    path = run_folder(settings)
    refuse_if_claimed(path)
    named = dict(overrides) if settings.resume else {**overrides, "run-name": path.name}
    try:
        title = f"{short_name(settings.method)} on {dataset_of(settings).name}, seed {settings.seed}"
        with display(f"{title} ({settings.run_name})" if settings.run_name else title, settings.rounds) as show:
            engine.run(named, path, show)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"run {path.name} was stopped{_said(error)}; go on with `{resume_command(path)}`, in Python with "
            f"fl.run(resume='{path.name}', runs_dir='{path.parent}')"
        ) from error
    except (ConfigurationError, DataError):
        _leave_nothing(path)
        raise
    if settings.transfer_target:
        print(transfer_once(path), file=sys.stderr)
    return path


def carry_out_run(overrides: Mapping[str, Value], means: Means, on_evaluation: OnEvaluation | None = None) -> Path:
    """Start an engine, carry out one run, log its warnings, and return its folder.

    Args:
        overrides: the run configuration, where it differs from the defaults.
        means: how to carry it out.
        on_evaluation: see :data:`OnEvaluation`.

    Raises:
        ConfigurationError, RunError, KeyboardInterrupt: as :func:`run_experiment`.
    """
    from florilegium.apps.engines.registry import engine  # what only carries out part of a run needs none

    with engine(means.engine, means.workers, [overrides], on_evaluation, fork=means.fork) as chosen:
        path = run_experiment(chosen, overrides, means.display)
    tell_warnings(path)
    return path


def tell_warnings(run: Path) -> None:
    """Log the warnings in the summary of a completed run (:mod:`florilegium.strategies.core.health`)."""
    for warning in read_summary(run).get("warnings", ()):
        log.warning("run %s: %s", run.name, warning)


def _leave_nothing(path: Path) -> None:
    """Remove the folder of a run that was refused before it began."""
    if not (path / "config.toml").exists():
        for name in ("run.log", "status.json", LOCK):
            (path / name).unlink(missing_ok=True)
        with suppress(OSError):
            path.rmdir()


def _said(error: BaseException) -> str:
    return f" ({error})" if str(error) else ""
