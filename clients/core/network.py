"""The network that a configuration names, built for a dataset."""

from __future__ import annotations

from torch import nn

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.models.networks import build
from florilegium.models.parameters import frozen
from florilegium.partitions.spec import DatasetSpec


def network_for(
    spec: DatasetSpec, model: str, seed: int, *, shape: tuple[int, ...] = (), outputs: int = 0
) -> nn.Sequential:
    """Build network ``model`` for a dataset, initialised from ``seed``.

    Args:
        spec: the dataset, which gives the kind of inputs.
        model: value of key ``model``.
        seed: the run's seed.
        shape: shape of inputs, if it is not the dataset's.
        outputs: number of outputs; 0: those of the dataset's task.

    Raises:
        ConfigurationError: as :func:`florilegium.models.networks.build`, or if a block has a name that messages use.
    """
    first, *positions = (outputs,) if outputs else spec.learned.outputs
    network = build(model, shape or spec.shape, first, seed, codes=spec.coded, positions=tuple(positions))
    if (reserved := BESIDE.removesuffix(".")) in network._modules:
        raise ConfigurationError(f"model: '{model}' has a block '{reserved}', a reserved name; rename it")
    return network


def check_nothing_frozen(network: nn.Module, model: str, method: str) -> None:
    """Raise :class:`ConfigurationError` if the network has frozen parameters; for methods that make or cut all."""
    if names := [*frozen(network)]:
        raise ConfigurationError(
            f"model: '{model}' has frozen parameters ('{names[0]}'), but method '{method}' makes all parameters of a "
            "model anew, or cuts them; let them require gradients, or use another method"
        )
