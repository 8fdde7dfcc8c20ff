"""Evaluation of several clients at once.

If their models are the same, as when the server's model is tested, their examples are joined into large batches. Else
the models are stacked, with clients sorted by their number of examples, so that few rows are wasted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from florilegium.clients.core.stacked_examples import form_for, joined, kind_of, starts
from florilegium.clients.core.together import Request, Waiting
from florilegium.clients.core.training import EVALUATION_BATCH
from florilegium.models.stacked import stacked
from florilegium.models.stacked_norms import Norms
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import Task

_BLOCK = 64
"""Number of examples of each client in a batch of stacked models."""


@dataclass(frozen=True)
class Features(Request):
    """A request for a network's outputs; see :func:`florilegium.clients.core.training.features`."""

    network: nn.Module
    examples: Examples
    key: Hashable
    trains: ClassVar[bool] = False

    @classmethod
    def of(cls, network: nn.Module, examples: Examples) -> Self | None:
        """Return the request; None if examples may affect each other's outputs, and without examples."""
        form = stacked(network, norms=True) if len(examples) else None
        return None if form is None else cls(network, examples, (form.signature, kind_of(examples)))

    @classmethod
    def carry_out(cls, waiting: Sequence[Waiting]) -> Sequence[Any]:
        """Return the outputs for each client's examples, (n_i, …)."""
        return _outputs(waiting).split([len(one.request.examples) for one in waiting])


@dataclass(frozen=True)
class Evaluation(Request):
    """A request for loss and figures; see :func:`florilegium.clients.core.training.evaluate`."""

    network: nn.Module
    examples: Examples
    task: Task
    key: Hashable
    trains: ClassVar[bool] = False

    @classmethod
    def of(cls, network: nn.Module, examples: Examples, task: Task) -> Self | None:
        """Return the request; None as for :class:`Features`."""
        inner = Features.of(network, examples)
        return None if inner is None else cls(network, examples, task, (inner.key, task.key))

    @classmethod
    @torch.no_grad()
    def carry_out(cls, waiting: Sequence[Waiting]) -> list[dict[str, float]]:
        """Return what the task measures of each client's model."""
        task, parts = waiting[0].request.task, [one.request.examples for one in waiting]
        y, outputs = torch.cat([part.y for part in parts]), _outputs(waiting)
        found = task.rows(outputs, y)
        if found is None:
            counts = [*map(len, parts)]
            return [task.measure(*pair) for pair in zip(outputs.split(counts), y.split(counts), strict=True)]
        sizes = torch.tensor([*map(len, parts)])
        owners = torch.arange(len(parts)).repeat_interleave(sizes).to(y.device)
        sums = found.new_zeros(len(parts), found.shape[1]).index_add_(0, owners, found)
        return [task.from_means(means) for means in (sums.cpu() / sizes[:, None]).tolist()]


@torch.no_grad()
def _outputs(waiting: Sequence[Waiting]) -> Tensor:
    """Return the outputs for the examples of all clients, one client after the other, (Σ n_i, …)."""
    parts: list[Examples] = [one.request.examples for one in waiting]
    contents = [[*one.shared.parameters, *one.shared.buffers] for one in waiting]
    x = joined(parts).x
    # One comparison for each parameter, not for each client: a GPU would have to finish each.
    if all(bool((torch.stack(copies) == copies[0]).all()) for copies in zip(*contents, strict=True)):
        return _alone(waiting[0], x)
    form, device = form_for(waiting[0].request.network, parts[0], norms=True), x.device
    if form is None:
        return torch.cat([_alone(one, one.request.examples.x) for one in waiting])
    order = sorted(range(len(parts)), key=lambda index: -len(parts[index]))
    tensors = [torch.stack(copies) for copies in zip(*(contents[index] for index in order), strict=True)]
    count = len(waiting[0].shared.parameters)
    sizes, first = torch.tensor([*map(len, parts)])[order], starts(parts)[order]
    blocks = []
    for begin in range(0, int(sizes[0]), _BLOCK):
        active = int((sizes > begin).sum())
        places = torch.arange(begin, min(begin + _BLOCK, int(sizes[0])))
        # The last example of a client with fewer ones is repeated.
        rows = first[:active, None] + torch.minimum(places, sizes[:active, None] - 1)
        now = [tensor[:active] for tensor in tensors]
        outputs = form(now[:count], x[rows.to(device)], Norms(now[count:], training=False))
        blocks.append((rows, outputs))
    result = blocks[0][1].new_empty(len(x), *blocks[0][1].shape[2:])
    for rows, outputs in blocks:
        result[rows.flatten().to(device)] = outputs.flatten(0, 1)
    return result


def _alone(waiting: Waiting, x: Tensor) -> Tensor:
    """Return the outputs of one client's model."""
    waiting.shared.load()
    network = waiting.request.network.eval()
    return torch.cat([network(batch) for batch in x.split(EVALUATION_BATCH)])
