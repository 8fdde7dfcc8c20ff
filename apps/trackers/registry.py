"""The trackers by name, and the checks that are made before a run starts."""

from __future__ import annotations

from importlib.util import find_spec

from florilegium.apps.trackers.base import Tracker
from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry, subclass_of

_HERE = "florilegium.apps.trackers"


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    "a tracker",
    {
        "tensorboard": f"{_HERE}.tensorboard:TensorBoard",
        "mlflow": f"{_HERE}.mlflow:MLflow",
        "wandb": f"{_HERE}.wandb:WeightsAndBiases",
    },
    subclass_of(Tracker, "florilegium.Tracker"),
)


def check_tracker(name: str) -> None:
    """Check that a tracker can be used.

    Args:
        name: a value of key ``tracker``; "" is none.

    Raises:
        ConfigurationError: if there is no such tracker, its package is missing, or its place cannot be used.
    """
    if not name:
        return
    tracker = TRACKERS[name]
    if tracker.package and find_spec(tracker.package) is None:
        own = name in TRACKERS.own
        how = f"install Florilegium with its extra [{name}]" if own else f"pip install {tracker.package}"
        raise ConfigurationError(f"tracker: '{name}' needs the package {tracker.package}: {how}")
    try:
        tracker.check()
    except Exception as error:  # every tracker has its own errors
        said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"tracker: '{name}' cannot be used: {said}") from error
