"""The network that a configuration names, built for a dataset."""

from __future__ import annotations

from torch import nn

from florilegium.clients.core.settings import SharedSettings
from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.models.built import build_network
from florilegium.models.parameters import Arrays, frozen, without_statistics
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.spec import DatasetSpec


def network_for(
    spec: DatasetSpec, settings: NetworkSettings, seed: int, *, shape: tuple[int, ...] = (), outputs: int = 0
) -> nn.Sequential:
    """Build a network for a dataset, initialised from ``seed``.

    Args:
        spec: the dataset, which gives the kind of inputs.
        settings: the keys of the network.
        seed: the run's seed.
        shape: shape of inputs, if it is not the dataset's.
        outputs: number of outputs; 0: those of the dataset's task.

    Raises:
        ConfigurationError: as :func:`florilegium.models.built.build_network`, or if a block has a name that messages
            use.
    """
    first, *positions = (outputs,) if outputs else spec.learned.outputs
    network = build_network(settings, shape or spec.shape, first, seed, codes=spec.codes, positions=tuple(positions))
    if (reserved := BESIDE.removesuffix(".")) in network._modules:
        raise ConfigurationError(f"model: '{settings.model}' has a block '{reserved}', a reserved name; rename it")
    return network


def check_trained(shared: Arrays, settings: SharedSettings) -> None:
    """Raise :class:`ConfigurationError` if none of the blocks that clients share, and train by themselves, is trained.

    Args:
        shared: the arrays of these blocks that training changes.
        settings: the run's configuration.
    """
    if not without_statistics(shared):
        raise ConfigurationError(
            f"model, adapter.kind: method '{settings.method}' trains the blocks that clients share, and those of "
            f"'{settings.model}' are frozen; use adapters beside the head, or a method that trains the head"
        )


def check_nothing_frozen(network: nn.Module, model: str, method: str) -> None:
    """Raise :class:`ConfigurationError` if the network has frozen parameters; for methods that make or cut all."""
    if names := [*frozen(network)]:
        raise ConfigurationError(
            f"model: '{model}' has frozen parameters ('{names[0]}'), but method '{method}' makes all parameters of a "
            "model anew, or cuts them; let them require gradients, or use another method"
        )
