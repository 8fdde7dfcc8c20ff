"""Networks as sequences of named blocks: which array belongs to which block, and splitting into body and head."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import nn

from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays


def block_of(name: str) -> str:
    """Return the block that array ``name`` belongs to: "fc1" for "fc1.0.weight"."""
    return name.partition(".")[0]


def block_names(arrays: Iterable[str]) -> list[str]:
    """Return the blocks of a network, first to last, from the names of its arrays."""
    return list(dict.fromkeys(block_of(name) for name in arrays))


def last_blocks(arrays: Iterable[str], count: int, key: str) -> frozenset[str]:
    """Return the names of the last ``count`` blocks of a network, the head.

    Raises:
        ConfigurationError: naming configuration key ``key``, unless at least one block remains for the body.
    """
    blocks = block_names(arrays)
    if not 0 <= count < len(blocks):
        raise ConfigurationError(
            f"{key}: {count} of the network's blocks were asked for, but it has {len(blocks)} ({', '.join(blocks)}) "
            "and at least one must be left"
        )
    return frozenset(blocks[len(blocks) - count :])


def classifier_shape(arrays: Arrays, key: str) -> tuple[int, int]:
    """Return the numbers of outputs and inputs (C, d) of a network's last block, the classifier.

    Raises:
        ConfigurationError: naming configuration key ``key``, unless the last of several blocks is a single dense layer.
    """
    weights = [array for array in of_blocks(arrays, last_blocks(arrays, 1, key)).values() if array.ndim == 2]
    if len(weights) != 1:
        raise ConfigurationError(f"{key}: the network's last block must be a single dense layer")
    classes, features = weights[0].shape
    return classes, features


def of_blocks(arrays: Mapping[str, object], blocks: Collection[str]) -> Arrays:
    """Return those of ``arrays`` that belong to ``blocks``."""
    return {name: array for name, array in arrays.items() if block_of(name) in blocks}  # type: ignore[misc]


def cut(network: nn.Sequential, head: Collection[str]) -> tuple[nn.Sequential, nn.Sequential]:
    """Split ``network`` into body and head, which share its parameters; ``head`` names its last blocks.

    Raises:
        ValueError: if ``head`` does not name the last blocks.
    """
    names = [name for name, _ in network.named_children()]
    position = len(names) - len(head)
    if set(names[position:]) != set(head):
        raise ValueError(f"blocks {sorted(head)} are not the last ones of {names}")
    return network[:position], network[position:]
