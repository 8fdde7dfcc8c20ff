"""Optuna's side of a tuning: one study per method in one SQLite file, which proposes values and remembers trials.

SQLite's transactions leave a readable file however the process ends; a torn last line of Optuna's journal would not.
The sampler of each trial is seeded by the seed of its first run, the method and the trial's number, so that an
interrupted study goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from florilegium.apps.methods.registry import table_of
from florilegium.apps.origins.hashes import origins_of
from florilegium.apps.settings.configuration import complete, parse
from florilegium.apps.tuning.plan import Plan, Subject
from florilegium.apps.tuning.results import Result, Trial
from florilegium.apps.tuning.space import Range, listed
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import entropy
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import differing_settings

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

FILE = "study.db"
_STARTUP = 5
"""Number of a method's trials before values are sampled by model and trials are pruned."""
_COMBINATIONS = 100_000
"""Lists with more combinations may repeat one."""
_IDENTITY, _REASON, _FACTS = "identity", "reason", "facts"
_BUDGET = ("rounds", "evaluate-every", "evaluate-clients", "init", "min-success")
"""Keys that a resumed run may change, and a trial may not."""


def require_optuna() -> None:
    """Raise :class:`ConfigurationError` if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"tuning needs Optuna: pip install optuna ({error})") from error


@contextmanager
def storage(path: Path) -> Iterator[optuna.storages.BaseStorage]:
    """Context of the file with the studies, which is made if there is none; Optuna logs warnings alone.

    Raises:
        RunError: if the file is damaged.
    """
    import optuna
    from sqlalchemy import URL
    from sqlalchemy.exc import SQLAlchemyError

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = None
    try:
        opened = optuna.storages.RDBStorage(URL.create("sqlite", database=str(path)).render_as_string())
        yield opened
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise RunError(f"{path} is damaged, or cannot be written: {error}. Delete its folder to begin anew.") from error
    finally:
        if opened is not None:
            opened.remove_session()
            opened.engine.dispose()
        optuna.logging.set_verbosity(before)


class MethodStudy:
    """The study of one method.

    Args:
        plan: the tuning.
        subject: the method.
        storage: where it is kept.

    Raises:
        ConfigurationError: if the storage has a study of other settings, ranges or data under this name, or one with
            more trials.
    """

    def __init__(self, plan: Plan, subject: Subject, storage: optuna.storages.BaseStorage) -> None:
        import optuna

        self._plan, self.subject = plan, subject
        self.maximised = plan.objective.higher
        config = complete(subject.keys)
        self._settings = parse(config)[0]
        self._study = optuna.create_study(
            storage=storage, study_name=subject.name, load_if_exists=True,
            direction="maximize" if self.maximised else "minimize",
            # A trial is ended if its best evaluation so far is worse than the median at the same round.
            pruner=optuna.pruners.MedianPruner(_STARTUP, n_warmup_steps=self._settings.rounds // 4),
        )  # fmt: skip
        identity = {
            "settings": config, "origins": origins_of(config, self._settings), "figure": plan.table.figure,
            "seeds": subject.seeds,
            "ranges": {key: found.model_dump(exclude_defaults=True) for key, found in subject.ranges.items()},
        }  # fmt: skip
        if (before := self._study.user_attrs.get(_IDENTITY)) is None:
            self._study.set_user_attr(_IDENTITY, identity)
        elif differing := _differences(before, identity, table_of(subject.method)):
            raise ConfigurationError(
                f"{plan.folder} has a study of '{subject.name}' with {'; '.join(differing)}. Choose another "
                "--runs-dir, or delete that folder."
            )
        if len(self._ended()) > plan.table.trials:
            raise ConfigurationError(
                f"{plan.folder} has {len(self._ended())} trials of '{subject.name}' already, trials = "
                f"{plan.table.trials} asks for fewer"
            )

    @property
    def remaining(self) -> int:
        """Number of trials still to be carried out; none once all combinations of a short list have been tried."""
        most = self._plan.table.trials
        return max(0, (len(listed(self.subject.ranges, most)) or most) - len(self._ended()))

    @property
    def next(self) -> int:
        """Number of the next trial."""
        return len(self._ended())

    def ask(self) -> optuna.Trial:
        """Return the next trial, with its values; those that were interrupted are forgotten."""
        import optuna
        from optuna.trial import TrialState

        for left in self._study.get_trials(states=(TrialState.RUNNING,)):
            self._study.tell(left.number, state=TrialState.FAIL)
        number, waiting = self.next, self._study.get_trials(states=(TrialState.WAITING,))
        seed = entropy(self._settings.seed, "tune", self.subject.name, number) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(n_startup_trials=_STARTUP, seed=seed)
        if not waiting and (chosen := self._fixed()) is not None:
            self._study.enqueue_trial(chosen)
        ranges = {key: _distribution(found) for key, found in self.subject.ranges.items()}
        trial = self._study.ask(ranges)
        if (other := self._instead(trial.params)) is not None:
            self._study.tell(trial, state=TrialState.FAIL)
            self._study.enqueue_trial(other)
            trial = self._study.ask(ranges)
        return trial

    def _fixed(self) -> dict[str, Value] | None:
        """Return the values of the next trial if they are not sampled: the recipe's own, or others of a short list."""
        tried = [one.params for one in self._ended()]
        fixed = [self.subject.own, *listed(self.subject.ranges, self._plan.table.trials)]
        return next((values for values in fixed if values not in tried), None)

    def _instead(self, values: dict[str, Value]) -> dict[str, Value] | None:
        """Return other values of lists if ``values`` were tried before: the same run would be made again."""
        tried = [one.params for one in self._ended()]
        if values not in tried:
            return None
        left = [one for one in listed(self.subject.ranges, _COMBINATIONS) if one not in tried]
        draw = entropy(self._settings.seed, "tune", self.subject.name, self.next, "instead")
        return left[draw % len(left)] if left else None

    def tell(self, trial: optuna.Trial, ended: Trial) -> None:
        """Record how a trial has ended."""
        from optuna.trial import TrialState

        trial.set_user_attr(_FACTS, {"clients": ended.clients, "rounds": ended.rounds, "objective": ended.objective})
        if ended.state == "failed":
            trial.set_user_attr(_REASON, ended.reason)
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[ended.state]
        self._study.tell(trial, ended.objective if ended.state == "complete" else None, state=state)

    def result(self) -> Result:
        """Return the trials so far."""
        from optuna.trial import TrialState

        words = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
        trials = [
            Trial(
                number, words[one.state], dict(one.params), reason=one.user_attrs.get(_REASON, ""),  # type: ignore[arg-type]
                **one.user_attrs[_FACTS],
            )
            for number, one in enumerate(self._ended())
        ]  # fmt: skip
        return Result(self.subject, trials, self._importances(), self.maximised)

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        """Return the trials that have ended, without those that were interrupted."""
        return [one for one in self._study.trials if one.state.is_finished() and _FACTS in one.user_attrs]

    def _importances(self) -> dict[str, float]:
        """Return each key's share of the objective's variance (fANOVA, Hutter et al. 2014); {} if it does not vary."""
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances
        from optuna.trial import TrialState

        done = self._study.get_trials(states=(TrialState.COMPLETE,))
        if len({one.value for one in done}) < 2:
            return {}
        return get_param_importances(self._study, evaluator=FanovaImportanceEvaluator(seed=self._settings.seed % 2**32))


def _distribution(found: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if found.low is None or found.high is None:
        return CategoricalDistribution(found.values)
    if isinstance(found.low, int) and isinstance(found.high, int):
        return IntDistribution(found.low, found.high, log=found.log)
    return FloatDistribution(found.low, found.high, log=found.log)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], table: str) -> list[str]:
    """Return in words what two studies of one method do not have in common."""
    old, new = complete(before["settings"]), now["settings"]
    words = differing_settings(old, new, table)
    if (seeds := before.get("seeds", [old["seed"]])) != now["seeds"]:  # earlier versions had one
        words.append(f"seeds: were {seeds}, are {now['seeds']}")
    words += [f"{key}: was {old[key]!r}, is {new[key]!r}" for key in _BUDGET if old[key] != new[key]]
    words += [
        f"{what} of {key}: was {before[what].get(key)!r}, is {now[what].get(key)!r}"
        for what, keys in (
            ("ranges", before["ranges"].keys() | now["ranges"].keys()),
            ("origins", before["origins"].keys() & now["origins"].keys()),  # earlier versions lack newer ones
        )
        for key in sorted(keys)
        if before[what].get(key) != now[what].get(key)
    ]
    return words + ([f"figure: was {before['figure']}"] if before["figure"] != now["figure"] else [])
