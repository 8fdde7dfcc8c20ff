"""Networks as sequences of named blocks: which array belongs to which block, and splitting into body and head.

A block is a child of the network with arrays of its own. Children without any (activations, pooling) belong to the
block before them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.text import listed
from florilegium.models.parameters import Arrays, whole

WHOLE = "model"
"""Name of the block of a network that cannot be cut."""
GUIDE = "docs/models.md"
"""Where users read how a network gets blocks."""


class OneBlock(nn.Sequential):
    """A network that cannot be cut: its only block, :data:`WHOLE`, is a module that is no sequence of blocks.

    Attributes:
        why: why the module is not a sequence of blocks, for error messages.
    """

    why = ""


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
            f"and at least one must be left; {GUIDE} says how a network gets blocks"
        )
    return frozenset(blocks[len(blocks) - count :])


def named_blocks(arrays: Iterable[str], names: str, key: str) -> frozenset[str]:
    """Return the blocks that ``names`` lists, separated by commas.

    Raises:
        ConfigurationError: naming configuration key ``key``, if there is no such block, or no other one.
    """
    blocks, chosen = block_names(arrays), listed(names)
    for name in chosen:
        if name not in blocks:
            raise ConfigurationError(f"{key}: the network has no block '{name}'; its blocks are {', '.join(blocks)}")
    if not {*blocks} - {*chosen}:
        raise ConfigurationError(f"{key}: at least one block must be left ({', '.join(blocks)})")
    return frozenset(chosen)


def classifier_shape(arrays: Arrays, key: str, *, biased: bool = False) -> tuple[int, int]:
    """Return the numbers of outputs and inputs (C, d) of a network's last block, the classifier.

    Raises:
        ConfigurationError: naming configuration key ``key``, unless the last of several blocks is a single dense layer;
            if ``biased``, also if it has no bias.
    """
    classifier = of_blocks(arrays, last_blocks(arrays, 1, key))
    weights = [array for array in classifier.values() if array.ndim == 2]
    others = [array for array in classifier.values() if array.ndim != 2]
    if len(weights) != 1 or len(others) > 1 or any(array.shape != weights[0].shape[:1] for array in others):
        raise ConfigurationError(
            f"{key}: the network's last block must be a single dense layer (found: {', '.join(classifier)})"
        )
    if biased and not others:
        raise ConfigurationError(f"{key}: the network's last block must have a bias (found: {', '.join(classifier)})")
    classes, features = weights[0].shape
    return classes, features


def of_blocks(arrays: Mapping[str, object], blocks: Collection[str]) -> Arrays:
    """Return those of ``arrays`` that belong to ``blocks``."""
    return {name: array for name, array in arrays.items() if block_of(name) in blocks}  # type: ignore[misc]


def last_from(network: nn.Module, names: Iterable[str]) -> list[str]:
    """Return the blocks of ``network`` from the first on that one of the arrays ``names`` belongs to, to the last."""
    blocks, own = block_names(whole(network)), {*map(block_of, names)}
    return blocks[next((place for place, block in enumerate(blocks) if block in own), len(blocks)) :]


def cut(network: nn.Sequential, head: Collection[str]) -> tuple[nn.Sequential, nn.Sequential]:
    """Split ``network`` into body and head, which share its parameters; ``head`` names its last blocks.

    Children without arrays belong to the body if they stand before the head, else to the head.

    Raises:
        ValueError: if ``head`` does not name the last blocks.
    """
    blocks = block_names(whole(network))
    position = len(blocks) - len(head)
    if set(blocks[position:]) != set(head):
        raise ValueError(f"blocks {sorted(head)} are not the last ones of {blocks}")
    children = list(network._modules)  # ``named_children`` skips a child that occurs twice
    start = children.index(blocks[position]) if head else len(children)
    return network[:start], network[start:]


def body_and_classifier(network: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """Split ``network`` into all blocks but the last, the body, and the last, the classifier."""
    return cut(network, block_names(whole(network))[-1:])
