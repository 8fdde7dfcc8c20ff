"""What several test files need: settings whose files stay in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.settings.configuration import Settings, complete, parse
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Work
from florilegium.common.settings import Value
from florilegium.models.frozen import NOTHING
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import Dataset, DatasetSpec
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets

TASK = make_task("classification", Targets(("label",), 10))
"""What is learned from the suite's own images: one of ten classes."""

_FOLDER = tempfile.TemporaryDirectory(prefix="florilegium-tests-")  # removed when the session ends
CACHE = Path(_FOLDER.name) / "cache"
RUNS = Path(_FOLDER.name) / "runs"


def config(**overrides: Value) -> dict[str, Value]:
    """Return the complete, flat run configuration: the defaults, with ``overrides`` and temporary folders.

    How fast the machine is does not decide on checkpoints.

    ``num_clients=3`` sets the key ``num-clients``; a method's own keys are given as ``**{"fedprox.mu": 0.1}``.
    Text gets a network for text.
    """
    own: dict[str, Value] = {"cache-dir": str(CACHE), "runs-dir": str(RUNS), "checkpoint-seconds": 0.0}
    keys = {key.replace("_", "-"): value for key, value in overrides.items()}
    spec = DATASETS.own.get(str(keys.get("dataset")))
    if isinstance(spec, DatasetSpec) and spec.kind == "characters":
        keys = {"model": "char-lstm", **keys}
    return complete({**own, **keys})


def make_client(examples: Examples, network: nn.Module, *, folder: Path = RUNS, **overrides: Value) -> Any:
    """Return the client "0" of the method of :func:`config`, which trains on ``examples`` and is tested on them."""
    options, hyper = parse(config(**overrides))
    data = ClientData(lambda: examples, lambda: examples, labeled=True, simulated=True, device=CPU)
    state = ClientState(folder / "0", 1, [], 0, "0")
    kind = METHODS[options.method].client_class()
    return kind("0", data, network, get_arrays(network), state, options, hyper, Work(1))


def with_network(arrays: Arrays) -> Any:
    """Return a federation that knows nothing but a network's arrays, all of which are trained."""
    return SimpleNamespace(network=arrays, start=SimpleNamespace(frozen=NOTHING))


def perform(client: BaseClient, phase: str, arrays: Arrays, *, round: int = 1, **arguments: Any) -> Answer:
    """Have a client carry out a phase as a request of ``round`` would; return its answer."""
    client.round = round
    return client.perform(phase, arrays, arguments)


def claiming(method: str, layer: str) -> dict[str, Value]:
    """Return a key of a method's own with which a layer goes with it; {} if it does by default, or with no key.

    Switches are tried the other way round, and numbers that are 0 as 1.
    """
    keys = METHODS[method].hyper()()
    if why_not(METHODS[method], layer):
        for name, value in keys:
            other: Value | None = not value if isinstance(value, bool) else type(value)(1) if value == 0 else None
            key = str(type(keys).model_fields[name].alias or name)
            if other is not None and not why_not(METHODS[method], layer, keys.model_copy(update={name: other})):
                return {f"{table_of(method)}.{key}": other}
    return {}


def adapting(method: str, targets: str) -> dict[str, Value]:
    """Return the key that names the layers to adapt, for a method that needs LoRA; {} for others."""
    return {"adapter.targets": targets} if "adapter.kind" in METHODS[method].implies else {}


def mostly_long(values: Iterable[str], *always: str) -> list[Any]:
    """Return parameters of a test: those that run with every change, and the others, marked as long."""
    return [value if value in always else pytest.param(value, marks=pytest.mark.long) for value in values]


def load(name: str, data_dir: str, cache_dir: str) -> Dataset:
    """Load the dataset that these keys name."""
    return load_dataset(FederationSettings(dataset=name, data_dir=data_dir, cache_dir=cache_dir))


def settings(**overrides: Value) -> Settings:
    """Return the checked settings of :func:`config`."""
    return parse(config(**overrides))[0]


def assert_rounded(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Check that two arrays of networks after a few rounds are the same but for float32 sums in another order.

    Each of n terms may be off by a rounding, 2⁻²⁴ of the largest entries; steps of training multiply the difference.
    Sixty-four roundings of the largest entry cover the short runs of the tests on all of PyTorch's instruction sets.
    """
    spread = float(np.abs(expected).max(initial=0)) * 2**-18
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7 + spread)
