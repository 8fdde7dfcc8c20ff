"""FLamby's own draws, for the suite's methods: initial models, order of clients and rows, order of batches.

FLamby (Ogier du Terrail et al. 2022) draws from one global PyTorch stream. It is seeded, the initial model is drawn; it
is seeded again before each training. Then every iterator of a ``DataLoader`` draws a base seed that nothing uses and,
at its first batch, the seed of its permutation. In a federated training the clients' first iterators are made before
that; the clients take their steps one after the other, and an exhausted iterator is followed by a new one. In its
"cyclic" training a single client takes steps in each round, in the order of :func:`turns`.

The names here are values of configuration keys: ``model = "florilegium.research.studies.flamby_draws:seed_42"``,
``partitioner`` :data:`CLIENTS` or :data:`POOLED`, and ``batch-order`` :func:`alone`, or the order of a federated
training by the name of its federation, such as :data:`heart`, with ``_cyclic`` for that training, and with
``_with_workers`` for loaders with worker processes (:data:`florilegium.clients.core.batch_orders.BatchOrder`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.batch_orders import BatchOrder
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.sources.brca import FEATURES as TCGA_FEATURES
from florilegium.partitions.sources.brca import REGION, REGIONS
from florilegium.partitions.sources.heart import FEATURES as HEART_FEATURES
from florilegium.partitions.sources.heart import HOSPITAL, HOSPITALS
from florilegium.partitions.split_table import SplitTable

UPDATES = 100
"""Steps of a client in a round."""
HEART, HEART_BATCH = (199, 172, 30, 85), 4
TCGA, TCGA_BATCH = (248, 156, 164, 129, 129, 40), 8
"""Training rows of the clients, in order, and examples in a batch."""
ORDER = {HOSPITAL: HOSPITALS, REGION: REGIONS}
"""The clients of each column of names, in order."""
_POOLED = {HOSPITAL: ("cleveland", "switzerland", "hungarian", "va")}
"""Order in which the files of the hospitals were read for the published figures: the one of all 24 orders that gives
each of them back. Regions' patients come in the order of their file."""


def __getattr__(name: str) -> Callable[[tuple[int, ...], int], nn.Sequential]:
    """Return, for the name ``seed_<number>``, a function that builds the dense layer that FLamby draws from it."""
    seed = name.removeprefix("seed_")
    if not name.startswith("seed_") or not seed.isdecimal():
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return lambda shape, outputs: _first_drawn(int(seed), shape, outputs)


def _first_drawn(seed: int, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def _rows(settings: FederationSettings, order: dict[str, tuple[str, ...]]) -> tuple[list[str], list[Rows], list[Rows]]:
    """Return the names of the natural clients in an order, by default as in the data, and their rows as in the data."""
    dataset = load_dataset(settings)
    column = dataset.spec.client_columns[0]
    assert dataset.test is not None
    owners, tested = dataset.train.clients[column], dataset.test.clients[column]
    names = [*order[column]]
    parts = [[np.flatnonzero(split == name) for name in names] for split in (owners, tested)]
    return names, parts[0], parts[1]


def _clients(settings: FederationSettings) -> SplitTable:
    names, train, test = _rows(settings, ORDER)
    return SplitTable("FLamby's clients", tuple(names), tuple(train), tuple(test))


def _pooled(settings: FederationSettings) -> SplitTable:
    names, train, test = _rows(settings, ORDER | _POOLED)
    ordered = "cleveland" in names
    rows = [np.concatenate(part) if ordered else np.sort(np.concatenate(part)) for part in (train, test)]
    return SplitTable("FLamby's pooled data", ("all",), (rows[0],), (rows[1],))


CLIENTS = Partitioning("FLamby's clients, in its order", split=_clients)
POOLED = Partitioning("one client with all of FLamby's rows, in its order", split=_pooled)


def _seed(stream: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=stream))


@cache
def _alone(seed: int) -> Callable[[int], int]:
    """Return the function pass → seed of its permutation, of a client that trains alone in the stream of ``seed``."""
    stream, found = torch.Generator().manual_seed(seed), list[int]()

    def of(number: int) -> int:
        while len(found) <= number:
            _seed(stream)  # the base seed
            found.append(_seed(stream))
        return found[number]

    return of


def turns(seed: int, clients: int) -> Iterator[int]:
    """Yield the client of each round of FLamby's "cyclic" training: all in a new order again and again."""
    stream = np.random.default_rng(seed)
    while True:
        yield from stream.permutation(clients).tolist()


@cache
def _together(seed: int, batches: tuple[int, ...], features: int, cyclic: bool) -> Callable[[int, int], int]:
    """Return the function (client, pass) → seed of its permutation, of clients that share the stream of ``seed``.

    Args:
        seed: the seed.
        batches: number of batches of a pass of each client.
        features: for loaders with worker processes, which take their first batches, and so draw, when they are made:
            inputs of the model that was drawn before that. 0: loaders without.
        cyclic: clients take steps in the order of :func:`turns`; otherwise one after the other in every round.
    """
    stream, found, left = torch.Generator().manual_seed(seed), [list[int]() for _ in batches], [0] * len(batches)
    if features:
        nn.init.uniform_(torch.empty(features + 1), generator=stream)  # the model's weights and bias
        for client, each in enumerate(batches):
            _seed(stream)
            found[client].append(_seed(stream))
            left[client] = each
        stream.manual_seed(seed)
    order = turns(seed, len(batches)) if cyclic else cycle(range(len(batches)))

    def of(client: int, number: int) -> int:
        while len(found[client]) <= number:
            turn = next(order)
            for _ in range(UPDATES):
                if not left[turn]:
                    if found[turn]:
                        _seed(stream)  # the base seed of the next iterator
                    found[turn].append(_seed(stream))
                    left[turn] = batches[turn]
                left[turn] -= 1
        return found[client][number]

    return of


def _order(seed: int, examples: int) -> Tensor:
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed))


def _federated(sizes: Sequence[int], batch: int, features: int = 0, *, cyclic: bool = False) -> BatchOrder:
    """Return the order of passes of clients with ``sizes`` training rows; other arguments as of :func:`_together`."""

    def order(seed: int, client: str, examples: int, number: int) -> Tensor:
        if examples != sizes[int(client)]:
            raise ValueError(f"client {client} has {examples} training examples, FLamby's has {sizes[int(client)]}")
        of = _together(seed, tuple(-(-size // batch) for size in sizes), features, cyclic)
        return _order(of(int(client), number), examples)

    return order


heart = _federated(HEART, HEART_BATCH)
heart_with_workers = _federated(HEART, HEART_BATCH, len(HEART_FEATURES))
heart_cyclic = _federated(HEART, HEART_BATCH, cyclic=True)
heart_cyclic_with_workers = _federated(HEART, HEART_BATCH, len(HEART_FEATURES), cyclic=True)
tcga = _federated(TCGA, TCGA_BATCH)
tcga_with_workers = _federated(TCGA, TCGA_BATCH, len(TCGA_FEATURES))
tcga_cyclic = _federated(TCGA, TCGA_BATCH, cyclic=True)
tcga_cyclic_with_workers = _federated(TCGA, TCGA_BATCH, len(TCGA_FEATURES), cyclic=True)


def alone(seed: int, client: str, examples: int, number: int) -> Tensor:
    """Return the order of a pass where each client trains alone."""
    return _order(_alone(seed)(number), examples)
