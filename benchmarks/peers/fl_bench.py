"""The common task in FL-bench, in one process or with Ray's workers.

    python -m benchmarks.peers.fl_bench METHOD ROUNDS WORKERS

The package reads the partition of the data from its own folder, where this script writes it. Its clients train for
``local_epoch`` epochs, but with SCAFFOLD for as many steps.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import hydra
import torch
from data.utils.datasets import DATASETS, BaseDataset
from omegaconf import DictConfig
from src.server.ditto import DittoServer
from src.server.fedavg import FedAvgServer
from src.server.fedprox import FedProxServer
from src.server.scaffold import SCAFFOLDServer
from src.utils.constants import FLBENCH_ROOT
from src.utils.functional import parse_args
from src.utils.models import MODELS, DecoupledModel

from benchmarks.peers.shared import arguments, count_steps, images, lenet, momentum, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, IMAGES, LEARNING_RATE, MU, STRENGTH

SERVERS = {"fedavg": FedAvgServer, "fedprox": FedProxServer, "scaffold": SCAFFOLDServer, "ditto": DittoServer}


class Pictures(BaseDataset):
    """The images of all clients, one client after the other."""

    def __init__(self, root: Any, args: Any, **transforms: Any) -> None:
        x, y = (torch.cat(parts) for parts in zip(*map(images, range(CLIENTS)), strict=True))
        super().__init__(data=torch.zeros(1), targets=y, classes=list(range(10)), **transforms)
        self.data = x  # not before, since values above 1 are taken for bytes and divided by 255


class Network(DecoupledModel):
    """The network; the last layer is the classifier."""

    def __init__(self, dataset: str, pretrained: bool) -> None:
        super().__init__()
        layers = lenet()
        self.base, self.classifier = layers[:-1], layers[-1]


def write_partition() -> None:
    """Write who has which images, all of them for training."""
    folder = FLBENCH_ROOT / "data" / "pictures"
    folder.mkdir(exist_ok=True)
    rows = torch.arange(CLIENTS * IMAGES).view(CLIENTS, IMAGES).tolist()
    separation = {"train": list(range(CLIENTS)), "val": [], "test": [], "total": CLIENTS}
    partition = {"separation": separation, "data_indices": [{"train": own, "val": [], "test": []} for own in rows]}
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
    (folder / "args.json").write_text(json.dumps({"split": "sample"}))


def timed(server: Any) -> Any:
    """Return a class of servers that prints a time stamp after every round, and whose clients' steps are counted."""

    class Client(server.client_cls):
        def __init__(self, **common: Any) -> None:
            torch.set_num_threads(1)
            count_steps()  # also in a worker of Ray's
            super().__init__(**common)

    class Timed(server):
        client_cls = Client

        def train_one_round(self) -> None:
            super().train_one_round()
            stamp(self.current_epoch + 1)

    return Timed


def main() -> None:
    """Run the method without evaluations and reports."""
    method, rounds, workers = arguments()
    write_partition()
    DATASETS["pictures"], MODELS["lenet"] = Pictures, Network
    never = {"interval": -1, "train": False, "val": False, "test": False}
    keys = {
        "dataset": {"name": "pictures"},
        "model": {"name": "lenet"},
        "optimizer": {"name": "sgd", "lr": LEARNING_RATE, "momentum": momentum(method)},
        "mode": "parallel" if workers > 1 else "serial",
        "parallel": {
            "ray_cluster_addr": None, "num_workers": workers, "num_cpus": workers,
            "num_gpus": 1,  # with 0 the package does not start; no worker uses it
        },
        "common": {
            "join_ratio": COHORT / CLIENTS, "global_epoch": rounds, "batch_size": BATCH, "verbose_gap": rounds + 1,
            "local_epoch": EPOCHS * IMAGES // BATCH if method == "scaffold" else EPOCHS,
            "client_side_evaluation": False, "test": {"client": never, "server": never}, "use_cuda": False,
            "save_log": False, "save_learning_curve_plot": False, "save_metrics": False,
        },
        "fedprox": {"mu": MU},
        "ditto": {"lamda": STRENGTH, "pers_epoch": EPOCHS},
    }  # fmt: skip

    def run(_: DictConfig) -> None:
        server = SERVERS[method]
        timed(server)(parse_args(DictConfig(keys), method, getattr(server, "get_hyperparams", None))).run_experiment()

    sys.argv[1:] = ["hydra.run.dir=."]  # the package asks Hydra for its folder
    hydra.main(version_base=None, config_path=None)(run)()


if __name__ == "__main__":
    main()
