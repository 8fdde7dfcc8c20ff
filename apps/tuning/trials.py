"""Carry out the trials of a tuning: each is a run whose evaluations measure on held-back training examples alone."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from florilegium.apps.engines.base import Engine, Means
from florilegium.apps.engines.progress import Display
from florilegium.apps.engines.registry import engine as choose
from florilegium.apps.runs.experiment import offered, run_experiment
from florilegium.apps.settings.configuration import complete
from florilegium.apps.settings.idle import warn_of_idle_keys
from florilegium.apps.tuning.plan import read_plan
from florilegium.apps.tuning.report import write_tuning
from florilegium.apps.tuning.results import FILE as CHOSEN
from florilegium.apps.tuning.results import Trial, Tuning, write_tuned
from florilegium.apps.tuning.study import FILE, MethodStudy, require_optuna, storage
from florilegium.common.errors import ConfigurationError, FileError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.metrics_file import read_evaluations
from florilegium.strategies.folder.results import read_clients, read_summary

if TYPE_CHECKING:
    import optuna

log = logging.getLogger("flwr")

GROUP = "seen"
"""The group of clients whose mean is the objective."""


def tune(
    recipe: str,
    name: str,
    overrides: Mapping[str, Value],
    means: Means,
) -> Tuning:
    """Carry out a tuning, or the rest of it, and return it; nothing is done for a complete one.

    Args:
        recipe, name: a recipe and its table ``[tune.<name>]``.
        overrides: keys that apply to all trials.
        means: how to carry them out.

    Raises:
        ConfigurationError: before the first trial, if the table or the configuration of a trial is wrong, or the folder
            has a study of other settings; in a trial, if its configuration turns out to be wrong.
        RunError: if another command is at work on the study, or its file is damaged.
        KeyboardInterrupt: if it was stopped; the message says how to go on.
    """
    require_optuna()
    plan = read_plan(recipe, name, overrides)
    warn_of_idle_keys(overrides, [subject.keys for subject in plan.subjects], offered(recipe))
    with _alone(plan.folder), storage(plan.folder / FILE) as opened:
        studies = [MethodStudy(plan, subject, opened) for subject in plan.subjects]
        open_ones = [study for study in studies if study.remaining]
        if open_ones:
            present = _Present(plan.table.figure)
            wanted = [{**study.subject.keys, **run} for study in open_ones for run in study.subject.runs]
            with choose(means.engine, means.workers, wanted, present, fork=means.fork) as chosen:
                for study in open_ones:
                    while study.remaining:
                        _carry_out(study, present, chosen, means.display)
        tuning = Tuning(plan, [study.result() for study in studies])
        if open_ones or not (plan.folder / CHOSEN).exists():
            write_tuned(tuning)
            write_tuning(tuning)
    for words in tuning.warnings():
        log.warning("%s", words)
    return tuning


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Context in which this process, and no other, works on the study in folder ``path``, which is made."""
    lock = FileLock(path / ".lock", timeout=0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RunError(f"another command is working on {path}; wait until it ends") from error
    except OSError as error:
        raise FileError(f"runs-dir: {path} cannot be made ({error.strerror}); name another folder") from error
    try:
        yield
    finally:
        lock.release()


class _Present:
    """Receives the evaluations of the present trial, and ends it if Optuna prunes it.

    Args:
        figure: the objective's figure.
    """

    def __init__(self, figure: str) -> None:
        self.figure = figure
        self.pruned = False
        self._trial: optuna.Trial | None = None
        self._before, self._last = 0, 0

    def begin(self, trial: optuna.Trial, before: int, last: int) -> None:
        """Receive from now on the evaluations of a run of ``trial``, whose runs count their rounds on.

        Args:
            trial: the trial.
            before: the rounds of its runs so far.
            last: the rounds of all its runs.
        """
        self._trial, self._before, self._last, self.pruned = trial, before, last, False

    def __call__(self, server_round: int, figures: Mapping[str, Mapping[str, float]]) -> bool:
        """Receive an evaluation; return whether the trial ends with it."""
        assert self._trial is not None
        value, step = objective(figures, self.figure), self._before + server_round
        if not math.isfinite(value) or step >= self._last:
            return False
        self._trial.report(value, step)
        self.pruned = self._trial.should_prune()
        return self.pruned


def objective(figures: Mapping[str, Mapping[str, float]], figure: str) -> float:
    """Return ``figure`` of the seen clients from the figures of an evaluation.

    Raises:
        ConfigurationError: if no seen client has an example to validate with.
    """
    if figure not in figures.get(GROUP, {}):
        raise ConfigurationError(f"no {GROUP} client has an example to validate with; raise validation-fraction")
    return figures[GROUP][figure]


def _carry_out(study: MethodStudy, present: _Present, engine: Engine, display: Display) -> None:
    """Carry out the next trial of a study, one run after the other, and record how it ended."""
    trial, number, subject = study.ask(), study.next, study.subject
    label = f"{re.sub(r'[^A-Za-z0-9._-]', '_', subject.name)}-{number:03d}"
    rounds, values = int(complete(subject.keys)["rounds"]), []
    for done, own in enumerate(subject.runs):
        present.begin(trial, done * rounds, len(subject.runs) * rounds)
        name = label if len(subject.runs) == 1 else f"{label}-seed{own['seed']}"
        keys = {**subject.keys, **own, **trial.params, "run-name": name}
        try:
            ended = _run(keys, number, trial.params, present, engine, display)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"the tuning was stopped in trial {number} of '{subject.name}'; the same command goes on with it"
            ) from error
        if ended.state != "complete" or ended.objective is None:
            break
        values.append(ended.objective)
    else:
        ended = replace(ended, objective=statistics.fmean(values))
    study.tell(trial, ended)
    if ended.reason:
        log.warning("trial %s failed: %s", name, ended.reason)


def _run(
    keys: dict[str, Value], number: int, values: dict[str, Value], present: _Present, engine: Engine, display: Display
) -> Trial:
    """Carry out a run of a trial; return how it ended, as a trial of one run."""
    path = Path(str(keys["runs-dir"])) / str(keys["run-name"])
    shutil.rmtree(path, ignore_errors=True)  # of an attempt that was interrupted
    try:
        run_experiment(engine, keys, display)
        ended = _read(path, number, values, present)
    except FileError:
        raise
    except RunError as error:
        evaluated = read_evaluations(path)
        ended = Trial(number, "failed", values, None, 0, evaluated[-1]["round"] if evaluated else 0, str(error))
    for left in ("checkpoint", "clients"):
        shutil.rmtree(path / left, ignore_errors=True)
    return ended


def _read(path: Path, number: int, values: dict[str, Value], present: _Present) -> Trial:
    """Return how the run in ``path`` ended."""
    summary = read_summary(path)
    rounds, value = int(summary["rounds"]), objective(summary["final"], present.figure)
    measured = {row["client"]: row["group"] for row in read_clients(path)}
    clients = [*measured.values()].count(GROUP)
    if lost := _lost(path, rounds, measured):
        # The mean of the others would be better the more clients diverge.
        reason = f"{len(lost)} clients could not be measured; " + "; ".join(f"client {k}: {v}" for k, v in lost.items())
        return Trial(number, "failed", values, None, clients, rounds, reason[:1000])
    if not math.isfinite(value):
        return Trial(number, "failed", values, None, clients, rounds, f"{present.figure} is {value}")
    return Trial(number, "pruned" if present.pruned else "complete", values, value, clients, rounds)


def _lost(path: Path, rounds: int, measured: Mapping[str, str]) -> dict[str, str]:
    """Return the clients that failed in the last evaluation of the run in ``path``, and why."""
    lost: dict[str, str] = {}
    with suppress(FileNotFoundError):
        for line in (path / "failures.jsonl").read_text(encoding="utf-8").splitlines():
            failure = json.loads(line)
            if failure["round"] == rounds and failure["client"] not in measured:
                lost[failure["client"]] = failure["reason"]
    return lost
