"""What the scripts of this folder share: arguments, data, time stamps, the count of steps.

It is imported in each package's own environment, which has PyTorch and NumPy, but not this package.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.plain import network
from benchmarks.task import CLIENTS, IMAGES, MOMENTUM

STEPS = "PEERS_STEPS"
"""Environment variable that names the file to which a byte is added for every step of a client's optimizer."""


def arguments() -> tuple[str, int, int]:
    """Return the method, the number of rounds and the number of workers, a script's arguments."""
    method, rounds, workers = sys.argv[1:]
    torch.set_num_threads(1)
    return method, int(rounds), int(workers)


def momentum(method: str) -> float:
    """Return the momentum of the clients' SGD: none for SCAFFOLD, whose control variates are means of gradients."""
    return 0.0 if method == "scaffold" else MOMENTUM


def lenet() -> torch.nn.Sequential:
    """Return the network, with random parameters."""
    return network("lenet")


def pictures() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return random images of CIFAR-10's shape, (n, 3, 32, 32), and labels (n,), of which 80 % are for training."""
    rng = np.random.default_rng(0)
    number = CLIENTS * IMAGES * 5 // 4
    return rng.standard_normal((number, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, number)


@cache
def images(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training images of a client, (n, 3, 32, 32), and labels (n,)."""
    rng = np.random.default_rng(client)
    x = rng.standard_normal((IMAGES, 3, 32, 32), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, IMAGES))


def stamp(ended: int) -> None:
    """Print that the round ``ended``, from 1, has ended now, on the clock that all processes of a machine share.

    With it goes the number of steps so far, of clients' optimizers in all processes (:func:`count_steps`).
    """
    steps = os.stat(os.environ[STEPS]).st_size if STEPS in os.environ else 0
    print(json.dumps({"round": ended, "time": time.monotonic(), "steps": steps}), flush=True)


@cache
def count_steps() -> None:
    """Count the steps of PyTorch's optimizers from now on, in this process and those that are forked from it.

    Steps at the learning rate 1 are a server's, which so adds the mean update, and are not counted.
    """
    if (path := os.environ.get(STEPS)) is None:
        return
    file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if optimizer.param_groups[0]["lr"] < 1:
            os.write(file, b".")

    register_optimizer_step_post_hook(stepped)
