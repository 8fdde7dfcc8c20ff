"""Cost of FedGTST's regulariser: a client's epoch with it against one without, on one core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import alternate, multiplications
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Work
from florilegium.clients.fedgtst import FedGTSTClient
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples

SHAPE, EXAMPLES, BATCH = (3, 28, 28), 1024, 256
REPEATS = 9


def epoch_costs(model: str) -> tuple[float, float, float]:
    """Return the median seconds of a regularised and of a plain epoch, and the ratio of their multiplications.

    The measurements alternate.
    """
    keys: dict[str, Value] = {
        "method": "fedgtst",
        "model": model,
        "optimizer": "adam",
        "learning-rate": 1e-3,
        "batch-size": BATCH,
    }
    settings, hyper = parse({**defaults(), **keys, "local-epochs": 1, "fedgtst.measured": "epoch"})
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(EXAMPLES, *SHAPE, generator=generator).to(memory_format=torch.channels_last)
    examples = Examples(x, torch.randint(10, (EXAMPLES,), generator=generator))
    data = ClientData(lambda: examples, lambda: examples, labeled=True, simulated=True, device=CPU)
    network = build(model, SHAPE, 10, 1)
    start = get_arrays(network)
    state = ClientState(Path(), 1, [], 0, "0")
    client = FedGTSTClient("0", data, network, start, state, settings, hyper, Work(1))

    def epoch(guide: float) -> Callable[[], object]:
        return lambda: client.perform("train", start, {"guide": guide})

    epochs = {"plain": epoch(0.0), "regularised": epoch(1.0)}
    counted = {name: multiplications(work) for name, work in epochs.items()}
    seconds = alternate(epochs, REPEATS)
    return seconds["regularised"], seconds["plain"], counted["regularised"] / counted["plain"]
