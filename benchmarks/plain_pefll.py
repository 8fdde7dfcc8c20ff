"""The computation of a PeFLL round of the recipe ``pefll-cifar10-n100`` in plain PyTorch, without communication.

Run as a script, it is one of the client processes and prints the seconds per round in which its clients compute
descriptors, train, and compute the embedding network's gradient. The server's part is measured separately, since
server and clients wait for each other in a round.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from torch import nn

from benchmarks.plain import network

COHORT, IMAGES, STEPS, BATCH, CLASSES, SIZE = 5, 400, 50, 32, 10, 25


def embedding() -> nn.Sequential:
    """Return the embedding network: LeNet with an additional input channel per class and a descriptor as output."""
    model = network("lenet")
    model[0], model[-1] = nn.Conv2d(3 + CLASSES, 16, 5), nn.Linear(84, SIZE)
    return model


def clients(count: int, rounds: int) -> float:
    """Return the seconds per round that ``count`` clients compute, one after the other on one thread."""
    torch.set_num_threads(1)
    model, φ = network("lenet"), embedding()
    x, y = torch.randn(IMAGES, 3, 32, 32), torch.randint(0, CLASSES, (IMAGES,))
    start = 0.0
    for work in range(-1, rounds * count):  # the first is a warm-up
        if work == 0:
            start = time.perf_counter()
        rows = torch.randperm(IMAGES)[:BATCH]
        planes = nn.functional.one_hot(y[rows], CLASSES).float()[:, :, None, None].expand(-1, -1, 32, 32)
        batch = torch.cat([x[rows], planes], dim=1)
        with torch.no_grad():
            φ(batch).mean(dim=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        done = 0
        while done < STEPS:
            for rows in torch.randperm(IMAGES).split(BATCH)[: STEPS - done]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 50.0)
                optimizer.step()
                done += 1
        torch.autograd.grad(φ(batch).mean(dim=0), list(φ.parameters()), torch.randn(SIZE))
    return (time.perf_counter() - start) / rounds


def server(rounds: int) -> float:
    """Return the seconds per round that the server computes on one thread.

    It generates five models, propagates their updates back through the hypernetwork, and takes a step of Adam.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size = sum(p.numel() for p in network("lenet").parameters())
    layers = [layer for _ in range(3) for layer in (nn.Linear(100, 100), nn.ReLU())]
    h, φ = nn.Sequential(nn.Linear(SIZE, 100), nn.ReLU(), *layers, nn.Linear(100, size)), embedding()
    parameters = [*h.parameters(), *φ.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2e-4)
    start = 0.0
    for number in range(-1, rounds):
        if number == 0:
            start = time.perf_counter()
        θ = h(torch.randn(COHORT, SIZE))
        for parameter, Δ in zip(
            h.parameters(), torch.autograd.grad(θ, list(h.parameters()), torch.randn_like(θ)), strict=True
        ):
            parameter.grad = Δ / COHORT
        for parameter in φ.parameters():
            parameter.grad = torch.randn_like(parameter)
        nn.utils.clip_grad_norm_(parameters, 50.0)
        optimizer.step()
    torch.set_num_threads(threads)
    return (time.perf_counter() - start) / rounds


def measure(rounds: int, processes: int) -> tuple[float, float]:
    """Return the seconds per round of the slowest of ``processes`` client processes, and those of the server."""
    shares = [len(range(first, COHORT, processes)) for first in range(min(processes, COHORT))]
    command = [sys.executable, "-m", "benchmarks.plain_pefll"]
    running = [
        subprocess.Popen([*command, str(share), str(rounds)], stdout=subprocess.PIPE, text=True) for share in shares
    ]
    return max(float(process.communicate()[0]) for process in running), server(rounds)


if __name__ == "__main__":
    print(clients(int(sys.argv[1]), int(sys.argv[2])))
