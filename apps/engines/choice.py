"""Choose the engine that carries out runs: this process and its own workers, or Flower's simulation on Ray.

Both give the same numbers with the same number of workers. Ray spreads a run over a cluster or several GPUs, and takes
some ten seconds to start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from florilegium.apps.assembly.early_checks import check_early
from florilegium.apps.engines.process import Engine, InThisProcess, OnEvaluation
from florilegium.apps.engines.progress import Show
from florilegium.apps.engines.ray_cluster import named_cluster
from florilegium.apps.origins.packages import NOTEBOOK, import_path, in_notebook
from florilegium.apps.settings.configuration import complete
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.core.run_folder import STOP

EngineName = Literal["auto", "process", "ray"]


@contextmanager
def engine(
    name: EngineName,
    workers: int,
    wanted: Sequence[Mapping[str, Value]],
    on_evaluation: OnEvaluation | None = None,
    *,
    fork: bool = False,
) -> Iterator[Engine]:
    """Context of an engine.

    Args:
        name: "process"; "ray"; or "auto", which takes "ray" if ``RAY_ADDRESS`` names a cluster, or if several workers
            are to share several GPUs.
        workers: number of worker processes; with one, "process" works in this process.
        wanted: the configurations of the runs that it is for, where they differ from the defaults. Before the first of
            several runs, and while Ray starts, all are rehearsed (:func:`rehearse`).
        on_evaluation: see :data:`OnEvaluation`.
        fork: whether workers may be forked from this process.

    Raises:
        ConfigurationError: for an unknown engine, or one that cannot carry out the runs.
        ConfigurationError, DataError, RunError: if a run cannot begin.
    """
    if name not in get_args(EngineName):
        raise ConfigurationError(f"engine: '{name}' is unknown. Allowed: {', '.join(get_args(EngineName))}")
    if workers < 1:
        raise ConfigurationError(f"workers: must be 1 or more (found: {workers})")
    configs = [complete(keys) for keys in wanted]
    ray = name == "ray" or (name == "auto" and _wants_ray(workers, configs))
    typed_in = [one for config in configs for one in in_notebook(config)] if ray or workers > 1 else []
    if ray:  # the tracker lies in the server's process
        typed_in += [own for config in configs if (own := str(config["tracker"])).startswith(f"{NOTEBOOK}:")]
    if typed_in:
        raise ConfigurationError(
            f"engine: worker processes cannot import '{typed_in[0]}', which is defined in this notebook or script; "
            "save it in a module of its own, or use engine='process' with workers=1"
        )
    different = _different(configs)
    for config in different:
        check_early(config)
    if not ray:
        _rehearse(different if len(configs) > 1 else [])
        yield InThisProcess(on_evaluation, workers, fork=fork)
        return
    from florilegium.apps.engines.ray_simulation import Simulation

    with Simulation(workers, import_path(configs[0]) if configs else "") as simulation:
        _rehearse(different)  # while Flower and Ray start
        yield _Watched(simulation, on_evaluation) if on_evaluation else simulation


def _rehearse(configs: Sequence[Mapping[str, Value]]) -> None:
    if configs:
        from florilegium.apps.engines.rehearsal import rehearse  # imports torch, which takes seconds

        for config in configs:
            rehearse(config)


def _different(configs: Sequence[Mapping[str, Value]]) -> list[Mapping[str, Value]]:
    """Return one of all configurations that differ only in seed and name, none that may start from another's model."""
    if len(configs) > 1:
        configs = [config for config in configs if not config["init"]]
    return [*{json.dumps({**config, "seed": 0, "run-name": ""}, sort_keys=True): config for config in configs}.values()]


def _wants_ray(workers: int, configs: Sequence[Mapping[str, Value]]) -> bool:
    if named_cluster():
        return True
    if workers == 1 or not any(str(config["device"]) in ("auto", "cuda") for config in configs):
        return False
    import torch  # takes seconds, but the run needs it too

    return torch.cuda.device_count() > 1


class _Watched:
    """A simulation whose evaluations are passed on; a file asks it to end."""

    def __init__(self, simulation: Engine, on_evaluation: OnEvaluation) -> None:
        self._simulation, self._on_evaluation = simulation, on_evaluation

    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        """Carry out one run (:meth:`Engine.run`)."""
        last = 0

        def show(status: Mapping[str, Any]) -> None:
            nonlocal last
            progress(status)
            evaluated = int(status.get("evaluated", 0))
            if evaluated > last and status.get("figures"):
                last = evaluated
                if self._on_evaluation(evaluated, json.loads(json.dumps(status["figures"]))):
                    (run_path / STOP).touch()

        self._simulation.run(overrides, run_path, show)
