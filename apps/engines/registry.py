"""The engines by name, and the choice among them.

All give the same numbers with the same number of workers. An engine of another package is an entry point
``florilegium.engines``, or a reference ``package.module:Class`` to a subclass of :class:`Engine`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from florilegium.apps.assembly.early_checks import check_early
from florilegium.apps.engines.base import Engine, OnEvaluation
from florilegium.apps.origins.packages import NOTEBOOK, in_notebook
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry, subclass_of
from florilegium.common.settings import Value
from florilegium.partitions.loading import task_of

AUTO = "auto"
DEFAULT = "process"
"""What "auto" takes where no other engine of the suite suits the runs."""


ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    "an engine, nor 'auto'",
    {
        DEFAULT: "florilegium.apps.engines.process:InThisProcess",
        "ray": "florilegium.apps.engines.ray:Ray",
    },
    subclass_of(Engine, "florilegium.Engine"),
)


@contextmanager
def engine(
    name: str,
    workers: int,
    wanted: Sequence[Mapping[str, Value]],
    on_evaluation: OnEvaluation | None = None,
    *,
    fork: bool = False,
) -> Iterator[Engine]:
    """Context of an engine.

    Args:
        name: an engine; or "auto", which takes one of the suite's that suits the runs (:meth:`Engine.suits`).
        workers: number of worker processes; with one, "process" works in this process.
        wanted: the configurations of the runs that it is for, where they differ from the defaults. Before the first of
            several runs, and while a remote engine starts, all are rehearsed (:func:`rehearse`).
        on_evaluation, fork: as for :class:`Engine`.

    Raises:
        ConfigurationError: for an unknown engine, or one that cannot carry out the runs.
        ConfigurationError, DataError, RunError: if a run cannot begin.
    """
    if name != AUTO:
        ENGINES[name]
    if workers < 1:
        raise ConfigurationError(f"workers: must be 1 or more (found: {workers})")
    configs = [complete(keys) for keys in wanted]
    chosen = ENGINES[_suitable(workers, configs) if name == AUTO else name]
    typed_in = [one for config in configs for one in in_notebook(config)] if chosen.remote or workers > 1 else []
    if chosen.remote:  # the tracker lies in the server's process
        typed_in += [own for config in configs if (own := str(config["tracker"])).startswith(f"{NOTEBOOK}:")]
    if typed_in:
        raise ConfigurationError(
            f"engine: worker processes cannot import '{typed_in[0]}', which is defined in this notebook or script; "
            "save it in a module of its own, or use engine='process' with workers=1"
        )
    different = _different(configs)
    for config in different:
        check_early(config)
    with chosen(workers, configs, on_evaluation, fork=fork) as started:
        if chosen.remote or len(configs) > 1:
            _rehearse(configs)
        yield started


def _suitable(workers: int, configs: Sequence[Mapping[str, Value]]) -> str:
    return next((name for name in ENGINES.own if ENGINES[name].suits(workers, configs)), DEFAULT)


def _rehearse(configs: Sequence[Mapping[str, Value]]) -> None:
    """Rehearse different runs; first of all check that methods fit tasks, also of runs that start from others."""
    from florilegium.apps.assembly.task_checks import check_task  # imports torch, which takes seconds
    from florilegium.apps.engines.rehearsal import rehearse

    for config in configs:
        settings, hyper = parse(config)
        check_task(settings, hyper, task_of(settings))
    for config in _different(configs):
        rehearse(config)


def _different(configs: Sequence[Mapping[str, Value]]) -> list[Mapping[str, Value]]:
    """Return one of all configurations that differ only in seed and name, none that may start from another's model."""
    if len(configs) > 1:
        configs = [config for config in configs if not config["init"]]
    return [*{json.dumps({**config, "seed": 0, "run-name": ""}, sort_keys=True): config for config in configs}.values()]
