"""DP-SGD of several clients at once, for networks whose trained layers are dense.

What a layer received and the gradients of its outputs, of all clients' examples in one pass, give the norms and the
clipped sums (:mod:`florilegium.privacy.example_gradients`). Each client draws its batches and its noise as it does
alone, so that the guarantee and its cost are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from florilegium.clients.core.optimizers import Optimizer
from florilegium.clients.core.stacked_examples import joined, starts
from florilegium.clients.core.stacked_objectives import Batch, StackedLoss
from florilegium.clients.core.stacked_training import Together, Training
from florilegium.clients.core.together import Waiting
from florilegium.clients.core.training import Correction, Trained, gradient_of
from florilegium.models.stacked import Note, StackedNetwork
from florilegium.privacy.example_gradients import ExampleGradients, clipped
from florilegium.privacy.steps import Draws, PrivateSteps


@dataclass(frozen=True)
class PrivateTraining(Training):
    """A request for local training with private gradients.

    Attributes:
        private: the steps.
    """

    objective: StackedLoss
    private: PrivateSteps

    @classmethod
    def work(cls, jobs: Sequence[PrivateTraining], parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Together:
        """Return the training of several clients; networks with buffers are none of its."""
        return _PrivateTogether(jobs, parameters, [Draws(job.private) for job in jobs])

    @classmethod
    def carry_out(cls, waiting: Sequence[Waiting]) -> list[Trained]:
        """Train the waiting clients' networks; return the mean losses: gradients that are measured are not private."""
        return [trained._replace(gradient_norm=None) for trained in super().carry_out(waiting)]


def request(model: nn.Module, *args: Any, private: PrivateSteps | None = None, **kwargs: Any) -> Training | None:
    """Return the request for a training, private or not; None for one that is done alone.

    The arguments are those of :func:`florilegium.clients.core.training.train`.
    """
    plain = Training.of(model, *args, **kwargs)
    if plain is None or private is None:
        return plain
    if type(plain.objective) is not StackedLoss or plain.order:
        return None
    if not _has_notes(plain.objective.form, [place for places in plain.places for place in places]):
        return None
    same = {field.name: getattr(plain, field.name) for field in fields(plain)}
    return PrivateTraining(**same | {"key": (plain.key, private.clip_norm)}, private=private)


def _has_notes(form: StackedNetwork, trained: Sequence[int]) -> bool:
    """Return whether each trained parameter belongs to one dense layer."""
    layers = zip(form.layers, form.places, strict=True)
    dense = [place for layer, own in layers if isinstance(layer, nn.Linear) for place in own]
    used = [place for own in form.places for place in own]
    return all(place in dense and used.count(place) == 1 for place in trained)


class _PrivateBatches:
    """The batches that N clients draw, each in its own step; an example takes part at random (Poisson sampling)."""

    def __init__(self, jobs: Sequence[PrivateTraining], draws: Sequence[Draws]) -> None:
        self._examples, self._starts = joined([job.examples for job in jobs]), starts([job.examples for job in jobs])
        own = [torch.ones(len(job.examples)) if job.weights is None else job.weights.cpu() for job in jobs]
        self._own = torch.cat(own).to(self._examples.y.device)
        self._draws = draws

    def at(self, step: int, active: int) -> Batch:
        """Return the next batch of each of the first ``active`` clients; rows that fill it up have weight 0."""
        chosen = [torch.from_numpy(own.batch()) for own in self._draws[:active]]
        sizes = torch.tensor([*map(len, chosen)])
        rows = torch.zeros(active, max(1, int(sizes.max())), dtype=torch.int64)
        real = torch.arange(rows.shape[1]) < sizes[:, None]
        rows[real] = torch.cat(chosen)
        rows = (rows + self._starts[:active, None]).to(self._examples.y.device)
        real, sizes = real.to(rows.device), sizes.to(rows.device)
        weights = torch.where(real, self._own[rows], 0.0)
        return Batch(self._examples.x[rows], self._examples.y[rows], weights, sizes, int(sizes.min()))

    def take_draws(self) -> None:
        """Do nothing: the batches come from no generator of the seed."""


class _PrivateTogether(Together):
    """The private training of N clients.

    Args:
        jobs, parameters: see :class:`Together`.
        draws: what each client draws.
    """

    def __init__(self, jobs: Sequence[PrivateTraining], parameters: Sequence[Tensor], draws: Sequence[Draws]) -> None:
        super().__init__(jobs, parameters, _PrivateBatches(jobs, draws))
        self._draws, self._longest = draws, jobs[0].private.clip_norm
        self._expected = torch.tensor([job.private.expected for job in jobs], device=parameters[0].device)

    def _step(
        self, now: Sequence[Tensor], optimizers: Sequence[Optimizer], hook: Correction | None, batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the mean loss of one batch of each client, (n,), and its private gradients (n, *shape), corrected."""
        notes: list[Note] = []
        losses = self._jobs[0].objective.each(now, batch, notes)
        notes = [note for note in notes if any(now[p].requires_grad for p in note.places)]
        returned = torch.autograd.grad(losses.sum(), [note.outputs for note in notes])
        real = torch.arange(losses.shape[1], device=losses.device) < batch.sizes[:, None]
        with torch.no_grad():
            layers = [_gradients(now, note, g) for note, g in zip(notes, returned, strict=True)]
            for note, sums in zip(notes, clipped(layers, self._longest)[1], strict=True):
                own = [now[place] for place in note.places if now[place].requires_grad]
                for parameter, summed in zip(own, sums, strict=True):
                    parameter.grad = summed / self._expected[: len(summed)].view(-1, *[1] * (summed.dim() - 1))
            trained = [place for places in self._jobs[0].places for place in places]
            gradients = [gradient_of(now[place]) for place in trained]
            self._add_noise([gradients[trained.index(place)] for place in sorted(trained)])
        if hook is not None:
            hook.apply(trained, [now[place] for place in trained], gradients)
        return torch.where(real, losses.detach(), 0.0).sum(dim=1) / batch.sizes.clamp(min=1), gradients

    def _add_noise(self, gradients: Sequence[Tensor]) -> None:
        """Add each client's noise to its gradients, which are in the order of the network's parameters."""
        for client, draws in enumerate(self._draws[: len(gradients[0])]):
            for gradient in gradients if draws.deviation else ():
                noise = torch.from_numpy(draws.noise(tuple(gradient.shape[1:])))
                gradient[client] += noise.to(gradient.device)


def _gradients(now: Sequence[Tensor], note: Note, returned: Tensor) -> ExampleGradients:
    """Return the gradients of examples in a dense layer, given those of its outputs."""
    weight, bias = (*(now[place].requires_grad for place in note.places), False)[:2]
    return ExampleGradients(_positions(note.received), _positions(returned), weight, bias)


def _positions(x: Tensor) -> Tensor:
    """Return what a layer receives or returns, (n, b, …, k), by positions, (n, b, T, k)."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])
