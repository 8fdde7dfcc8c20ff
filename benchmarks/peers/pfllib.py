"""The common task in PFLlib, which has one process; the working folder is to be empty.

    python -m benchmarks.peers.pfllib METHOD ROUNDS WORKERS

The package reads clients' data from files, a client's anew in every round, and its SGD has no momentum.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flcore.servers.serveravg import FedAvg
from flcore.servers.serverditto import Ditto
from flcore.servers.serverprox import FedProx
from flcore.servers.serverscaffold import SCAFFOLD

from benchmarks.peers.shared import arguments, count_steps, images, lenet, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, LEARNING_RATE, MU, STRENGTH

SERVERS = {"fedavg": FedAvg, "fedprox": FedProx, "scaffold": SCAFFOLD, "ditto": Ditto}


def write_data(folder: Path) -> None:
    """Write the files of all clients, without test data, as the package's generators do, but not compressed."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for client in range(CLIENTS):
            x, y = (values.numpy()[: None if part == "train" else 0] for values in images(client))
            np.savez(folder / part / f"{client}.npz", data=np.array({"x": x, "y": y}))


def timed(server: Any, rounds: int) -> Any:
    """Return a class of servers that evaluates nothing, prints a time stamp after every round, and ends with the last.

    The package's own servers evaluate all clients before the first round, whatever ``eval_gap`` is.
    """

    class Timed(server):
        ended = 0

        def evaluate(self, acc: Any = None, loss: Any = None) -> None:
            """Compute nothing."""

        evaluate_personalized = evaluate

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            self.ended += 1
            stamp(self.ended)
            if self.ended == rounds:
                sys.exit()  # the package's closing report needs evaluations

    return Timed


def main() -> None:
    """Run the method in a folder beside the data, where the package looks for them."""
    method, rounds, _ = arguments()
    count_steps()
    write_data(Path("dataset/pictures"))
    Path("system").mkdir()
    os.chdir("system")
    settings = SimpleNamespace(
        device="cpu", dataset="pictures", num_classes=10, model=lenet(), algorithm=method, goal="", few_shot=0,
        num_clients=CLIENTS, join_ratio=COHORT / CLIENTS, random_join_ratio=False, global_rounds=rounds,
        local_epochs=EPOCHS, plocal_epochs=EPOCHS, batch_size=BATCH, local_learning_rate=LEARNING_RATE,
        learning_rate_decay=False, learning_rate_decay_gamma=1.0, mu=STRENGTH if method == "ditto" else MU,
        server_learning_rate=1.0, eval_gap=rounds, auto_break=False, top_cnt=0, save_folder_name="items",
        client_drop_rate=0.0, train_slow_rate=0.0, send_slow_rate=0.0, time_select=False, time_threthold=1e9,
        dlg_eval=False, dlg_gap=rounds, batch_num_per_client=0, num_new_clients=0, fine_tuning_epoch_new=0,
    )  # fmt: skip
    timed(SERVERS[method], rounds)(settings, 0).train()


if __name__ == "__main__":
    main()
