"""The common task in BlazeFL, with a pool of processes.

python -m benchmarks.peers.blazefl METHOD ROUNDS WORKERS
"""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as mp
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgDownlinkPackage,
    FedAvgProcessPoolUplinkPackage,
)
from blazefl.core import ProcessPoolClientTrainer, SHMHandle, deserialize_model, serialize_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.shared import arguments, count_steps, images, lenet, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, LEARNING_RATE, MOMENTUM


class Selector:
    """Makes networks."""

    def select_model(self, model_name: str) -> nn.Module:
        """Return a new network."""
        return lenet()


class Trainer(ProcessPoolClientTrainer[FedAvgProcessPoolUplinkPackage, FedAvgDownlinkPackage, int]):
    """Trains clients in processes that are forked in every round, as the package does; momentum is ours to add."""

    def __init__(self, workers: int) -> None:
        self.num_parallels, self.device, self.device_count = workers, "cpu", 0
        self.cache: list[FedAvgProcessPoolUplinkPackage] = []
        self.stop_event = mp.Manager().Event()
        self.size = serialize_model(lenet())

    def get_client_config(self, cid: int) -> int:
        """Return the client's number."""
        return cid

    def prepare_uplink_package_buffer(self) -> FedAvgProcessPoolUplinkPackage:
        """Return the shared memory of a client's reply."""
        return FedAvgProcessPoolUplinkPackage(cid=-1, model_parameters=self.size.clone(), data_size=0)

    @staticmethod
    def worker(
        config: int, payload: FedAvgDownlinkPackage, device: str, stop_event: Any, *, shm_buffer: Any = None
    ) -> FedAvgProcessPoolUplinkPackage:
        """Train one client."""
        torch.set_num_threads(1)
        model, data = lenet(), TensorDataset(*images(config))
        deserialize_model(model, payload.model_parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for _ in range(EPOCHS):
            for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        shm_buffer.model_parameters.copy_(serialize_model(model))
        return FedAvgProcessPoolUplinkPackage(config, SHMHandle(), len(data))

    def uplink_package(self) -> list[FedAvgProcessPoolUplinkPackage]:
        """Return the clients' replies."""
        replies, self.cache = self.cache, []
        return replies


def main() -> None:
    """Run FedAvg."""
    _, rounds, workers = arguments()
    count_steps()
    for client in range(CLIENTS):
        images(client)  # forked processes find them
    server = FedAvgBaseServerHandler(Selector(), "lenet", None, rounds, CLIENTS, COHORT / CLIENTS, "cpu", BATCH, seed=1)
    trainer = Trainer(workers)
    while not server.if_stop():
        cohort = server.sample_clients()
        trainer.local_process(server.downlink_package(), cohort)
        for reply in trainer.uplink_package():
            server.load(reply)
        stamp(server.round)


if __name__ == "__main__":
    main()
