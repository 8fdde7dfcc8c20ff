"""The common task's SGD steps in a plain PyTorch loop: default memory layout, one thread, one process per worker.

Run as a script, it is one of these processes and prints the seconds its steps took.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from torch import nn

from benchmarks.task import BATCH, EPOCHS, IMAGES


def network(name: str) -> nn.Sequential:
    """Return the network in the usual PyTorch order of layers: convolution, ReLU, pooling."""
    c1, c2, d1, d2 = {"lenet": (16, 32, 120, 84), "cnn64": (64, 64, 120, 64)}[name]
    return nn.Sequential(
        nn.Conv2d(3, c1, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(c1, c2, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(25 * c2, d1), nn.ReLU(), nn.Linear(d1, d2), nn.ReLU(), nn.Linear(d2, 10),
    )  # fmt: skip


def train_clients(name: str, clients: int) -> float:
    """Train ``clients`` clients one after the other and return the seconds, without a warm-up client."""
    torch.set_num_threads(1)
    model = network(name)
    x, y = torch.randn(IMAGES, 3, 32, 32), torch.randint(0, 10, (IMAGES,))
    start = 0.0
    for client in range(-1, clients):  # the first is a warm-up
        if client == 0:
            start = time.perf_counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(EPOCHS):
            for rows in torch.randperm(IMAGES).split(BATCH):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
    return time.perf_counter() - start


def measure(name: str, cohort: int, rounds: int, processes: int) -> float:
    """Return the seconds per round when ``processes`` processes with a plain loop each share a cohort."""
    share = cohort * rounds // processes
    command = [sys.executable, "-m", "benchmarks.plain", name, str(share)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    seconds = [float(process.communicate()[0]) for process in running]
    return max(seconds) / rounds


if __name__ == "__main__":
    print(train_clients(sys.argv[1], int(sys.argv[2])))
