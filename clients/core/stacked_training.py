"""Local training of several clients at once, on a network with a leading axis of clients.

Every client has its own order of batches, number of steps, batch sizes, corrections and clipping. Results equal those
of :mod:`florilegium.clients.core.training` up to rounding. Clients are sorted by their number of steps, so that those
who still train are always the first rows of every array. The last batch of an epoch is filled up with rows of weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from florilegium.clients.core.optimizers import Optimizer
from florilegium.clients.core.order import Order
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.stacked_examples import form_for, joined, kind_of, starts
from florilegium.clients.core.stacked_objectives import Batch, StackedLoss, StackedObjective
from florilegium.clients.core.together import Request, Waiting
from florilegium.clients.core.training import (
    Correction,
    GradientHook,
    Group,
    Objective,
    Trained,
    gradient_of,
    least_of,
    make_optimizer,
    shuffled,
    trained_groups,
    weights_of,
    without_denormals,
)
from florilegium.models.stacked_norms import Norms
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import Task


@dataclass(frozen=True)
class Training(Request):
    """A request for local training; see :func:`florilegium.clients.core.training.train` for the arguments.

    Attributes:
        objective: what it minimises.
        steps: number of training steps, at least 1.
        places: for each group of parameters, their places in ``network.parameters()``.
        rates: the learning rate of each group.
    """

    network: nn.Module
    objective: StackedObjective
    examples: Examples
    settings: ClientSettings
    generator: torch.Generator
    steps: int
    places: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]
    hook: Correction | None
    weights: Tensor | None
    order: Order | None
    key: Hashable
    trains: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        model: nn.Module,
        examples: Examples,
        settings: ClientSettings,
        generator: torch.Generator,
        *,
        task: Task,
        epochs: int | None = None,
        gradient_hook: GradientHook | None = None,
        groups: Sequence[Group] | None = None,
        weights: Tensor | None = None,
        objective: Objective | None = None,
        decay: float = 1.0,
        after_epoch: Callable[[], None] | None = None,
        fixed_norms: bool = False,
        least: int | None = None,
        private: object = None,
        order: Order | None = None,
    ) -> Self | None:
        """Return the request; None for what cannot be stacked, and without examples."""
        hook = gradient_hook if isinstance(gradient_hook, Correction) else None
        stackable = objective if isinstance(objective, StackedObjective) else None
        alone = objective is not None and (stackable is None or weights is not None)
        special = alone or after_epoch or (least or 1) > 1 or private or examples.redraw or gradient_hook is not hook
        chosen = trained_groups(model, settings, groups)
        epoch = -(-len(examples) // settings.batch_size)
        counted = settings.local_epochs if epochs is None else epochs
        steps = settings.local_steps if epochs is None and settings.local_steps else counted * epoch
        own = weights_of(examples, weights)
        special = special or settings.micro_batch or settings.precision != "float32"
        if special or not chosen or not steps or not epoch:
            return None
        if stackable is None and (form := form_for(model, examples, norms=not fixed_norms)) is not None:
            if form.has_norms and least_of(model, examples, settings.batch_size) > 1:
                return None
            stackable = StackedLoss(form, task)
        if stackable is None or stackable.key is None:
            return None
        place = {id(parameter): index for index, parameter in enumerate(model.parameters())}
        places = tuple(tuple(place[id(parameter)] for parameter in group.parameters) for group in chosen)
        rates = tuple(group.learning_rate * (decay if group.decays else 1.0) for group in chosen)
        s = settings
        key = (
            type(stackable), stackable.key, places, rates, kind_of(examples),
            s.batch_size, s.optimizer, s.momentum, s.weight_decay, s.max_grad_norm,
            hook and (hook.strength, bool(hook.anchors), bool(hook.shifts)),
        )  # fmt: skip
        return cls(model, stackable, examples, settings, generator, steps, places, rates, hook, own, order, key)

    @classmethod
    def work(cls, jobs: Sequence[Any], parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Together:
        """Return the training of several clients, with their stacked parameters and buffers."""
        return Together(jobs, parameters, _Batches(jobs, buffers))

    @classmethod
    @without_denormals()
    def carry_out(cls, waiting: Sequence[Waiting]) -> list[Trained]:
        """Train the waiting clients' networks; return what the training of each has measured."""
        order = sorted(range(len(waiting)), key=lambda index: -waiting[index].request.steps)
        jobs: list[Training] = [waiting[index].request for index in order]
        clients = [waiting[index].shared for index in order]
        parameters, buffers = (
            [torch.stack(copies) for copies in zip(*contents, strict=True)]
            for contents in ([client.parameters for client in clients], [client.buffers for client in clients])
        )
        together = cls.work(jobs, parameters, buffers)
        trained = together.train()
        together.take_draws()
        for index, (job, client) in enumerate(zip(jobs, clients, strict=True)):
            client.parameters = [copies[index] for copies in parameters]
            client.buffers = [copies[index] for copies in buffers]
            if job.hook is not None:
                job.hook.steps += job.steps
            if job.order is not None:
                job.order.advance(job.steps, job.each)
        back = sorted(range(len(order)), key=order.__getitem__)
        return [trained[index] for index in back]

    def schedule(self, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the rows of every batch and their weights in its loss, (``steps``, batch size) each, on the CPU.

        Batches are those of :func:`florilegium.clients.core.training.batches`, or of the request's order. Rows that
        fill up a batch repeat its first row with weight 0; batches after the client's last step are never used.
        """
        size, count = self.settings.batch_size, len(self.examples)
        epoch, order = self.each, self.order
        last, first = count - (epoch - 1) * size, order.used if order else 0
        passes = range(-(-(first + self.steps) // epoch))
        orders = torch.stack(
            [order.permutation(order.number + i) if order else shuffled(self.examples, generator) for i in passes]
        )
        rows = torch.cat([orders, orders[:, -last, None].expand(-1, size - last)], dim=1).view(-1, size)
        weights = torch.full((epoch, size), 1 / size)
        weights[-1, :last], weights[-1, last:] = 1 / last, 0
        unused, own = (0, 0, 0, steps - self.steps), slice(first, first + self.steps)
        return pad(rows[own], unused), pad(weights.repeat(len(orders), 1)[own], unused)

    @property
    def each(self) -> int:
        """Number of batches of an epoch."""
        return -(-len(self.examples) // self.settings.batch_size)


class _Batches:
    """All batches of a training of N clients, with the buffers of their networks, (N, *shape) each."""

    def __init__(self, jobs: Sequence[Training], buffers: Sequence[Tensor]) -> None:
        self._jobs, self._buffers = jobs, buffers
        self._examples = joined([job.examples for job in jobs])
        device = self._examples.y.device
        # Copies, since a client whose training has failed here has to draw the same again.
        self._generators = [job.generator.clone_state() for job in jobs]
        schedules = (job.schedule(jobs[0].steps, own) for job, own in zip(jobs, self._generators, strict=True))
        rows, weights = map(torch.stack, zip(*schedules, strict=True))
        sizes = (weights > 0).sum(dim=2)
        self._widths: list[int] = sizes.amax(dim=0).tolist()
        self._least: list[int] = sizes.where(sizes > 0, self._widths[0]).amin(dim=0).tolist()
        self._sizes = sizes.to(device)
        self._weights = weights.to(device)
        for index, job in enumerate(jobs):
            if job.weights is not None:
                self._weights[index] *= job.weights[rows[index].to(device)]
        self._rows = (rows + starts([job.examples for job in jobs])[:, None, None]).to(device)

    def take_draws(self) -> None:
        """Set the clients' generators to what they are after the training."""
        for job, generator in zip(self._jobs, self._generators, strict=True):
            job.generator.set_state(generator.get_state())

    def at(self, step: int, active: int) -> Batch:
        """Return one batch of each of the first ``active`` clients."""
        width = self._widths[step]
        rows, weights = self._rows[:active, step, :width], self._weights[:active, step, :width]
        x, y = self._examples.x[rows], self._examples.y[rows]
        sizes, least = self._sizes[:active, step], self._least[step]
        buffers = [buffer[:active] for buffer in self._buffers]
        norms = Norms(buffers, training=True, sizes=None if least == width else sizes)
        return Batch(x, y, weights, sizes, least, norms)


class Batches(Protocol):
    """The batches of a training of N clients, asked for step by step."""

    def at(self, step: int, active: int) -> Batch:
        """Return one batch of each of the first ``active`` clients."""

    def take_draws(self) -> None:
        """Leave the clients' generators as they are after the training."""


class Together:
    """The training of N clients.

    Args:
        jobs: their requests, sorted by the number of steps, most first.
        parameters: the stacked parameters, (N, *shape) each, in the order of the network; changed in place.
        batches: what they train on.
    """

    def __init__(self, jobs: Sequence[Any], parameters: Sequence[Tensor], batches: Batches) -> None:
        self._jobs, self._parameters, self._batches = jobs, parameters, batches
        self.take_draws = batches.take_draws

    def train(self) -> list[Trained]:
        """Train; return each client's mean training loss per example, and the norm of its last step's gradient."""
        jobs, first = self._jobs, self._jobs[0]
        total, seen, norms = (torch.zeros(len(jobs), device=self._parameters[0].device) for _ in range(3))
        memory: list[list[Tensor]] = []
        begin = 0
        while begin < first.steps:
            active = sum(job.steps > begin for job in jobs)
            end = jobs[active - 1].steps
            now = [parameter[:active].detach() for parameter in self._parameters]
            optimizers = [
                make_optimizer(first.settings, Group([now[place].requires_grad_() for place in places], rate))
                for places, rate in zip(first.places, first.rates, strict=True)
            ]
            for optimizer, kept in zip(optimizers, memory, strict=bool(memory)):
                optimizer.recall([tensor[:active] if tensor.dim() else tensor for tensor in kept])
            hook = _stacked_hook([job.hook for job in jobs[:active]])
            for step in range(begin, end):
                batch = self._batches.at(step, active)
                loss, gradients = self._step(now, optimizers, hook, batch)
                if step == end - 1 or first.settings.max_grad_norm:
                    norms[:active] = _norms(gradients)
                if first.settings.max_grad_norm:
                    _clip(gradients, norms[:active], first.settings.max_grad_norm)
                for optimizer in optimizers:
                    optimizer.step()
                total[:active] += loss * batch.sizes
                seen[:active] += batch.sizes
            memory = [optimizer.memory() for optimizer in optimizers]
            begin = end
        measured = zip((total / seen.clamp(min=1)).tolist(), norms.tolist(), strict=True)
        return [Trained(loss, norm) for loss, norm in measured]

    def _step(
        self, now: Sequence[Tensor], optimizers: Sequence[Optimizer], hook: Correction | None, batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of one batch of each client, (n,), and its gradients (n, *shape), corrected, not clipped."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        objectives = [job.objective for job in self._jobs[: len(batch.sizes)]]
        loss = objectives[0].together(objectives, now, batch)
        loss.sum().backward()
        trained = [place for places in self._jobs[0].places for place in places]
        gradients = [gradient_of(now[place]) for place in trained]
        if hook is not None:
            hook.apply(trained, [now[place] for place in trained], gradients)
        return loss.detach(), gradients


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of each client's gradients (n, *shape), all together, (n,)."""
    return torch.stack([gradient.flatten(1).square().sum(dim=1) for gradient in gradients]).sum(dim=0).sqrt()


def _clip(gradients: Sequence[Tensor], norms: Tensor, most: float) -> None:
    """Clip each client's gradients, of these norms, to norm ``most``, as ``clip_grad_norm_`` does for one client."""
    factors = (most / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


def _stacked_hook(hooks: Sequence[Correction | None]) -> Correction | None:
    """Return the corrections of several clients, of equal strength, as one with a leading axis of clients."""
    some = [hook for hook in hooks if hook is not None]
    if not some:
        return None
    anchors, shifts = zip(*(hook.anchors for hook in some), strict=True), zip(*(h.shifts for h in some), strict=True)
    return Correction(some[0].strength, [*map(torch.stack, anchors)], [*map(torch.stack, shifts)])
