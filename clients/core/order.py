"""The order of batches of trainings that go on where the client's last one stopped (key ``batch-order``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from florilegium.clients.core.batch_orders import BATCH_ORDERS
from florilegium.common.errors import RunError
from florilegium.common.seeds import torch_generator


def drawn(seed: int, client: str, count: int, number: int) -> Tensor:
    """Return a random permutation of 0..count−1 that seed, client and the pass's number identify."""
    return torch.randperm(count, generator=torch_generator(seed, "client", client, "pass", number))


def checked(name: str, seed: int, client: str, count: int, number: int) -> Tensor:
    """Return the permutation of 0..count−1 that the order ``name`` gives for a pass.

    Raises:
        RunError: if it returns anything else.
    """
    found = BATCH_ORDERS[name](seed, client, count, number)
    right = isinstance(found, Tensor) and found.dtype == torch.int64 and found.shape == (count,)
    if not right or not torch.equal(found.sort().values, torch.arange(count)):
        raise RunError(
            f"batch-order: '{name}' must return a permutation of 0..{count - 1}, an int64 tensor on the CPU, for pass "
            f"{number} of client '{client}' (found: {found!r:.60})"
        )
    return found


@dataclass
class Order:
    """The batches of a client's trainings, one pass over its examples after the other.

    Attributes:
        permutation: order of the examples in a pass, given its number.
        number: the present pass.
        used: number of its batches that have been used.
    """

    permutation: Callable[[int], Tensor]
    number: int = 0
    used: int = 0

    def rest(self, split: Callable[[Tensor], list[Tensor]]) -> Iterator[Tensor]:
        """Yield the batches that are left of the present pass, at least one; each counts as used.

        Args:
            split: divides a permutation into batches.
        """
        parts = split(self.permutation(self.number))
        if self.used >= len(parts):  # the client has fewer examples than before
            self.number, self.used = self.number + 1, 0
            parts = split(self.permutation(self.number))
        for rows in parts[self.used :]:
            self.advance(1, len(parts))
            yield rows

    def advance(self, batches: int, each: int) -> None:
        """Count further batches as used; ``each``: number of batches of a pass."""
        passes, self.used = divmod(self.used + batches, each)
        self.number += passes
