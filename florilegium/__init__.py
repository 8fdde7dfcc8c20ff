"""Federated-learning methods as one Flower App and one Python package: ``import florilegium as fl``.

The names below are the public interface (docs/python.md); all else is internal. Each is imported when it is first used.

In an installed package the layers (``florilegium.apps``, ``florilegium.strategies``, …) lie in this folder. In a
checkout they lie beside it, at the top level, and this folder has a link to each. Flower's app and checkouts without
links (git on Windows writes files instead) have none here; there they are found at the top level.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

_here = _Path(__file__).resolve().parent
if not (_here / "apps").is_dir():
    __path__.append(str(_here.parent))

if _TYPE_CHECKING:
    from florilegium.apps.api.running import Comparison, Sweep, compare, describe, run, sweep
    from florilegium.apps.api.runs import Run
    from florilegium.apps.api.runs import list_runs as runs
    from florilegium.apps.api.runs import open_run as open
    from florilegium.apps.api.tables import Partition, datasets, keys, methods, partition
    from florilegium.apps.api.tuning import Tuning, tune
    from florilegium.apps.engines.base import Engine
    from florilegium.apps.methods.declaration import Method
    from florilegium.apps.trackers.base import TrackedRun, Tracker
    from florilegium.clients.core.base import Answer, BaseClient
    from florilegium.clients.core.phases import phase
    from florilegium.clients.core.reports import Range
    from florilegium.clients.core.training_facts import Training
    from florilegium.clients.families.decoupled import DecoupledClient
    from florilegium.clients.fedavg import FedAvgClient
    from florilegium.common.errors import ConfigurationError, DataError, FlorilegiumError, RunError
    from florilegium.common.settings import Section, key
    from florilegium.models.parameters import Arrays, get_arrays, set_arrays
    from florilegium.partitions.partitioning import Partitioning
    from florilegium.partitions.sources.arrays import array_dataset
    from florilegium.partitions.spec import DatasetSpec
    from florilegium.strategies.core.cohort import CohortStrategy
    from florilegium.strategies.core.round import Round
    from florilegium.strategies.exchange.messages import Messages
    from florilegium.strategies.families.decoupled import SharedBody
    from florilegium.strategies.fedavg import FedAvg
    from florilegium.tasks.metric import Metric
    from florilegium.tasks.task import Figure, Targets, Task

_PUBLIC = {
    # runs
    "run": "apps.api.running:run",
    "describe": "apps.api.running:describe",
    "compare": "apps.api.running:compare",
    "sweep": "apps.api.running:sweep",
    "tune": "apps.api.tuning:tune",
    "open": "apps.api.runs:open_run",
    "runs": "apps.api.runs:list_runs",
    "Run": "apps.api.runs:Run",
    "Comparison": "apps.api.running:Comparison",
    "Sweep": "apps.api.running:Sweep",
    "Tuning": "apps.api.tuning:Tuning",
    # what there is
    "methods": "apps.api.tables:methods",
    "datasets": "apps.api.tables:datasets",
    "keys": "apps.api.tables:keys",
    "partition": "apps.api.tables:partition",
    "Partition": "apps.api.tables:Partition",
    # to write a method
    "Method": "apps.methods.declaration:Method",
    "BaseClient": "clients.core.base:BaseClient",
    "FedAvgClient": "clients.fedavg:FedAvgClient",
    "DecoupledClient": "clients.families.decoupled:DecoupledClient",
    "Answer": "clients.core.base:Answer",
    "Training": "clients.core.training_facts:Training",
    "phase": "clients.core.phases:phase",
    "Range": "clients.core.reports:Range",
    "CohortStrategy": "strategies.core.cohort:CohortStrategy",
    "Messages": "strategies.exchange.messages:Messages",
    "FedAvg": "strategies.fedavg:FedAvg",
    "SharedBody": "strategies.families.decoupled:SharedBody",
    "Round": "strategies.core.round:Round",
    "Section": "common.settings:Section",
    "key": "common.settings:key",
    "Arrays": "models.parameters:Arrays",
    "get_arrays": "models.parameters:get_arrays",
    "set_arrays": "models.parameters:set_arrays",
    # to bring data
    "DatasetSpec": "partitions.spec:DatasetSpec",
    "array_dataset": "partitions.sources.arrays:array_dataset",
    "Partitioning": "partitions.partitioning:Partitioning",
    # to say what is learned
    "Task": "tasks.task:Task",
    "Metric": "tasks.metric:Metric",
    "Figure": "tasks.task:Figure",
    "Targets": "tasks.task:Targets",
    # to show figures elsewhere
    "Tracker": "apps.trackers.base:Tracker",
    "TrackedRun": "apps.trackers.base:TrackedRun",
    # to carry out runs elsewhere
    "Engine": "apps.engines.base:Engine",
    # errors
    "FlorilegiumError": "common.errors:FlorilegiumError",
    "ConfigurationError": "common.errors:ConfigurationError",
    "DataError": "common.errors:DataError",
    "RunError": "common.errors:RunError",
}
"""The public names, and where each is defined."""

_EARLIER = (
    "mean_of_updates", "more_than_gradients", "only_gradients", "only_sums", "stackable", "sums_of_updates",
    "trains_by_updates",
)  # fmt: skip
"""Names of earlier versions that other packages may still use."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from florilegium.apps.origins.package import project

        return project()["version"]
    if name in _EARLIER:
        raise AttributeError(
            f"florilegium.{name} is of earlier versions: strategies state messages = fl.Messages(…) and clients "
            "training = fl.Training(…) in their own bodies (docs/extending.md)"
        )
    if name not in _PUBLIC:
        raise AttributeError(f"module 'florilegium' has no attribute '{name}'")
    from importlib import import_module

    module, _, attribute = _PUBLIC[name].partition(":")
    found = getattr(import_module(f"florilegium.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
