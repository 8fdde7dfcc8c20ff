"""The common task: FedAvg on CIFAR-10, 100 clients with 150 images each, 10 a round, 5 epochs, batches of 10."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # other packages' environments, in which this module is imported, lack ours
    from florilegium.common.settings import Value

CLIENTS, IMAGES, COHORT, EPOCHS, BATCH = 100, 150, 10, 5, 10
LEARNING_RATE, MOMENTUM = 0.01, 0.9
MU, STRENGTH = 0.01, 1.0
"""FedProx's coefficient of the proximal term, and Ditto's."""

KEYS: dict[str, Value] = {
    "method": "fedavg",
    "dataset": "cifar10",
    "partitioner": "classes",
    "num-clients": CLIENTS,
    "classes-per-client": 2,
    "samples-per-client": IMAGES,
    "cohort-size": COHORT,
    "local-epochs": EPOCHS,
    "batch-size": BATCH,
    "learning-rate": LEARNING_RATE,
    "momentum": MOMENTUM,
    "evaluate-every": 0,
}
"""Run configuration of the task; each measurement adds the keys ``model`` and ``rounds``."""
