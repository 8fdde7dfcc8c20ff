"""The common task in PyTorch by hand, with a pool of processes.

    python -m benchmarks.peers.loop METHOD ROUNDS WORKERS

It is what one writes for an experiment: default memory layout, ``torch.optim.SGD``, no stacking of clients.
"""

from __future__ import annotations

import multiprocessing
import random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.peers.shared import arguments, count_steps, images, lenet, momentum, stamp
from benchmarks.task import BATCH, CLIENTS, COHORT, EPOCHS, IMAGES, LEARNING_RATE, MU, STRENGTH

Vector = NDArray[np.float32]
"""All parameters of a network, or as many other numbers."""


def _vector(model: nn.Module) -> Vector:
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def train(client: int, start: Vector, momentum: float, strength: float, anchor: Vector, shift: Vector) -> Vector:
    """Train a client from ``start``, with strength·(w − anchor) + shift added to each gradient; return parameters."""
    torch.set_num_threads(1)
    model, (x, y) = lenet(), images(client)
    parameters = list(model.parameters())
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), parameters)
    sizes = [parameter.numel() for parameter in parameters]
    anchors = torch.from_numpy(anchor).split(sizes) if strength else ()
    shifts = torch.from_numpy(shift).split(sizes) if shift.size else ()
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=momentum)
    for _ in range(EPOCHS):
        for rows in torch.randperm(IMAGES).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            with torch.no_grad():
                for parameter, fixed in zip(parameters, anchors, strict=False):
                    parameter.grad += strength * (parameter - fixed.view_as(parameter))
                for parameter, added in zip(parameters, shifts, strict=False):
                    parameter.grad += added.view_as(parameter)
            optimizer.step()
    return _vector(model)


def main() -> None:
    """Run the method; the state of clients is kept in this process."""
    method, rounds, workers = arguments()
    count_steps()
    for client in range(CLIENTS):
        images(client)  # forked processes find them
    model, none, rate = _vector(lenet()), np.empty(0, np.float32), momentum(method)
    control, states = np.zeros_like(model), dict[int, Vector]()
    rng, distance = random.Random(0), EPOCHS * IMAGES // BATCH * LEARNING_RATE
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for number in range(1, rounds + 1):
            cohort = rng.sample(range(CLIENTS), COHORT)
            strength = MU if method == "fedprox" else 0.0
            shifts = [control - states.get(client, 0 * control) if method == "scaffold" else none for client in cohort]
            work = [(client, model, rate, strength, model, shift) for client, shift in zip(cohort, shifts, strict=True)]
            if method == "ditto":
                work += [(client, states.get(client, model), rate, STRENGTH, model, none) for client in cohort]
            trained = pool.starmap(train, work, chunksize=1)
            if method == "ditto":
                states |= dict(zip(cohort, trained[COHORT:], strict=True))
            if method == "scaffold":
                changes = [(model - own) / distance - control for own in trained]
                states |= {
                    client: states.get(client, 0) + change for client, change in zip(cohort, changes, strict=True)
                }
                control = control + np.sum(changes, axis=0) / CLIENTS
            model = np.mean(trained[:COHORT], axis=0)
            stamp(number)


if __name__ == "__main__":
    main()
