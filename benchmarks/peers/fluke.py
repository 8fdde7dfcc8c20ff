"""The common task in fluke, which has one process.

python -m benchmarks.peers.fluke METHOD ROUNDS WORKERS
"""

from __future__ import annotations

from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.peers.shared import arguments, count_steps, images, lenet, momentum, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, LEARNING_RATE, MU, STRENGTH

ALGORITHMS = {"fedavg": FedAVG, "fedprox": FedProx, "scaffold": SCAFFOLD, "ditto": Ditto}


class Clock(FederationObserver):
    """Prints a time stamp after every round."""

    def end_round(self, round: int) -> None:
        """See the class."""
        stamp(round)


def main() -> None:
    """Run the algorithm without evaluations; clients' models stay in memory, as by default."""
    method, rounds, _ = arguments()
    count_steps()
    environment = FlukeENV()
    environment.set_seed(1)
    environment.set_device("cpu")
    environment.set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    loaders = [
        FastDataLoader(*images(client), num_labels=10, batch_size=BATCH, shuffle=True) for client in range(CLIENTS)
    ]
    data = DataSplitter(DummyDataContainer(loaders, [None] * CLIENTS, None, num_classes=10))
    model = lenet()
    client = DDict(
        batch_size=BATCH, local_epochs=EPOCHS, loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=LEARNING_RATE, momentum=momentum(method)),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    )  # fmt: skip
    if method == "fedprox":
        client.update(mu=MU)
    if method == "ditto":
        client.update(model=model, tau=EPOCHS, lam=STRENGTH)
    algorithm = ALGORITHMS[method](CLIENTS, data, DDict(model=model, client=client, server=DDict(weighted=True)))
    algorithm.set_callbacks([Clock()])
    algorithm.run(rounds, COHORT / CLIENTS)


if __name__ == "__main__":
    main()
