"""FedAvg in pfl-research's simulation (Apple, ``pfl`` on PyPI); needs the extra ``bench``.

    torchrun --nproc-per-node 2 -m benchmarks.pfl_research lenet 12     the common task, two processes
    python -m benchmarks.pfl_research lenet 12                  in one process, on the GPU if PyTorch finds one
    python -m benchmarks.pfl_research lenet 12 1000 40 50 1     1,000 clients of 40 images, 50 a round, one epoch

The clients' data lie on the GPU from the beginning.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.plain import network
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, IMAGES, LEARNING_RATE, MOMENTUM, MU


def seconds_per_round(
    name: str,
    rounds: int,
    clients: int = CLIENTS,
    images: int = IMAGES,
    cohort: int = COHORT,
    epochs: int = EPOCHS,
    *,
    method: str = "fedavg",
    ended: Callable[[int], None] = lambda number: None,
) -> float:
    """Run ``rounds`` rounds after one to warm up; return the median seconds of a round.

    Nothing is evaluated but the cohort of the first round.

    Args:
        name: of the network.
        rounds, clients, images, cohort, epochs: sizes; ``images`` are those of a client.
        method: "fedavg", "fedprox" or "scaffold"; clients of the last keep their states in the folder ``states``, where
            all processes find them, and train without momentum.
        ended: called with the number of each round that has ended, from 1.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.data.user_state import DiskUserStateStorage
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.stats import MappedVectorStatistics

    torch.set_num_threads(1)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network(name)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            self.train(not eval)
            return torch.nn.functional.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, object]:
            return {"loss": Weighted(float(self.loss(x, y, eval)), len(y))}

    np.random.seed(0)  # noqa: NPY002 - pfl draws cohorts with it: the same in all processes, each trains its part
    data: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    rng = np.random.default_rng(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # as pfl-research chooses
    for client in range(clients):
        x, y = rng.normal(size=(images, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, images)
        data[client] = (torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))

    def user_data(client: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(list(data[client]), user_id=str(client))

    dataset = FederatedDataset(user_data, get_user_sampler("random", list(range(clients))))
    module = Network()
    momentum = 0.0 if method == "scaffold" else MOMENTUM
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=momentum), central)
    stamps = [time.perf_counter()]

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, object]:
            from pfl.metrics import Metrics

            stamps.append(time.perf_counter())
            ended(len(stamps) - 1)
            return False, Metrics()

    common = {
        "central_num_iterations": rounds + 1, "evaluation_frequency": 10**6, "train_cohort_size": cohort,
        "val_cohort_size": 0,
    }  # fmt: skip
    storage = DiskUserStateStorage("states")
    torch.serialization.add_safe_globals([MappedVectorStatistics])  # pfl reads states with PyTorch's default
    algorithm, parameters = {
        "fedavg": lambda: (FederatedAveraging(), NNAlgorithmParams(**common)),
        "fedprox": lambda: (FedProx(), FedProxParams(**common, mu=MU)),
        "scaffold": lambda: (SCAFFOLD(), SCAFFOLDParams(
            **common, population=clients, use_gradient_as_control_variate=False, user_state_storage=storage,
        )),
    }[method]()  # fmt: skip
    algorithm.run(
        backend=SimulatedBackend(training_data=dataset, val_data=dataset),
        model=model,
        algorithm_params=parameters,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=epochs, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=256),
        callbacks=[Clock()],
    )
    return float(np.median(np.diff(stamps)[1:]))


def measure(name: str, rounds: int, processes: int) -> float:
    """Return the seconds per round of pfl-research, which shares a cohort among ``processes``."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, "-m", "benchmarks.pfl_research", name, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pfl-research failed: {done.stderr[:2000]}")
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(seconds_per_round(sys.argv[1], *map(int, sys.argv[2:])), flush=True)
    if torch.distributed.is_initialized():  # a process that ends before the others makes them fail
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
