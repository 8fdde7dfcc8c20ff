"""The common task in Flower's simulation, as in its quickstart.

python -m benchmarks.peers.flower METHOD ROUNDS WORKERS
"""

from __future__ import annotations

from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg, FedProx
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.shared import arguments, count_steps, images, lenet, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, IMAGES, LEARNING_RATE, MOMENTUM, MU


class Client(NumPyClient):
    """A client whose data lie in memory; the proximal term is computed if the server asks for it."""

    def __init__(self, client: int) -> None:
        self.model = lenet()
        self.loader = DataLoader(TensorDataset(*images(client)), batch_size=BATCH, shuffle=True)

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Train from the parameters received; return the trained ones and the number of examples."""
        keys, mu = self.model.state_dict().keys(), float(config.get("proximal_mu", 0))
        arrays = zip(keys, map(torch.tensor, parameters), strict=True)
        self.model.load_state_dict(dict(arrays))
        received = [parameter.detach().clone() for parameter in self.model.parameters()]
        optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for _ in range(EPOCHS):
            for x, y in self.loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                if mu:
                    distances = zip(self.model.parameters(), received, strict=True)
                    loss = loss + mu / 2 * sum((own - before).square().sum() for own, before in distances)
                loss.backward()
                optimizer.step()
        return [array.numpy() for array in self.model.state_dict().values()], IMAGES, {}


def client_fn(context: Context) -> Any:
    """Return the client of a node."""
    torch.set_num_threads(1)
    count_steps()
    return Client(int(context.node_config["partition-id"])).to_client()


def main() -> None:
    """Run the simulation with one Ray worker per processor; nothing is evaluated."""
    method, rounds, workers = arguments()
    initial = ndarrays_to_parameters([array.numpy() for array in lenet().state_dict().values()])

    def after(number: int, *_: object) -> None:
        if number:
            stamp(number)

    def server_fn(context: Context) -> ServerAppComponents:
        common: dict[str, Any] = {
            "fraction_fit": COHORT / CLIENTS, "fraction_evaluate": 0.0, "min_available_clients": CLIENTS,
            "min_fit_clients": COHORT, "initial_parameters": initial, "evaluate_fn": after,
        }  # fmt: skip
        strategy = FedProx(**common, proximal_mu=MU) if method == "fedprox" else FedAvg(**common)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(
        ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=CLIENTS,
        backend_config={"init_args": {"num_cpus": workers}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip


if __name__ == "__main__":
    main()
