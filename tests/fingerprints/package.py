"""All that the fingerprints import of the suite."""

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.engines.progress import silent
from florilegium.apps.engines.ray_simulation import Simulation
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.experiment import run_experiment
from florilegium.apps.settings.configuration import defaults
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint

__all__ = [
    "METHODS", "Simulation", "Value", "defaults", "federate", "read_checkpoint", "run_experiment", "run_here", "silent",
    "write_device",
]  # fmt: skip
