"""The one local training loop and the one evaluation loop, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from florilegium.clients.core.optimizers import SGD, Adam, Optimizer
from florilegium.clients.core.order import Order
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.together import offered
from florilegium.common.errors import RunError
from florilegium.common.seeds import torch_draws
from florilegium.models.batch_norm import has_lone_channels, norms_of
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import Task

if TYPE_CHECKING:
    from florilegium.privacy.dp_sgd import PrivateGradients
    from florilegium.privacy.steps import PrivateSteps

GradientHook = Callable[[nn.Module, Tensor], None]
"""Called after each backward pass, to change the gradients before the optimiser's step.

Its arguments are the network and the rows (indices) of the batch's examples.
"""

Objective = Callable[[Tensor], Tensor]
"""Loss of a batch, as a function of the rows of its examples; differentiable in the trained parameters.

With private gradients it returns the loss of each example, (b,).
"""

EVALUATION_BATCH = 256
MOST_OUTPUTS = 1 << 26
"""Outputs that an evaluation has at a time, if each position has some."""
BUCKET = 16
"""Number of batches whose texts are sorted by length, with ``bucket``."""


class Trained(NamedTuple):
    """What a training reports.

    Attributes:
        loss: the mean training loss per example over all steps, each loss taken before the step's update.
        gradient_norm: Euclidean norm of the gradient of the last step, all trained parameters together, before
            ``max-grad-norm``; None after no step, and with private gradients.
    """

    loss: float
    gradient_norm: float | None


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate of their own."""

    parameters: Sequence[Tensor]
    learning_rate: float
    decays: bool = True
    """Whether ``learning-rate-decay`` applies to this learning rate."""
    plain: bool = False
    """Whether the steps are plain gradient steps, whatever ``optimizer``, ``momentum`` and ``weight-decay`` say."""


def trained_groups(model: nn.Module, settings: ClientSettings, groups: Sequence[Group] | None) -> list[Group]:
    """Return ``groups``, by default all parameters in one, without frozen parameters and without empty groups."""
    groups = groups or [Group(list(model.parameters()), settings.learning_rate)]
    groups = [replace(group, parameters=[p for p in group.parameters if p.requires_grad]) for group in groups]
    return [group for group in groups if group.parameters]


def make_optimizer(settings: ClientSettings, group: Group, decay: float = 1.0) -> Optimizer:
    """Return the configured optimizer, or plain SGD, for the parameters of ``group``, at its rate times ``decay``."""
    rate = group.learning_rate * (decay if group.decays else 1.0)
    if group.plain:
        return SGD(group.parameters, rate, momentum=0.0, weight_decay=0.0)
    if settings.optimizer == "adam":
        return Adam(group.parameters, rate, settings.weight_decay)
    return SGD(group.parameters, rate, settings.momentum, settings.weight_decay)


def shuffled(examples: Examples, generator: torch.Generator) -> Tensor:
    """Return the rows of one epoch in random order, on the CPU."""
    return torch.randperm(len(examples), generator=generator)


def batches(
    examples: Examples, size: int, generator: torch.Generator, least: int = 1, *, bucket: bool = False
) -> Iterator[Tensor]:
    """Yield the rows of one epoch in random order, divided by :func:`in_batches`, or :func:`by_length`."""
    rows = shuffled(examples, generator).to(examples.y.device)
    sorts = bucket and not examples.x.is_floating_point()  # features of texts have no length
    yield from by_length(rows, examples.x, size, generator, least) if sorts else in_batches(rows, size, least)


def by_length(rows: Tensor, x: Tensor, size: int, generator: torch.Generator, least: int = 1) -> list[Tensor]:
    """Return rows of an epoch, in random order, in batches of texts of similar length, which need less padding.

    Of each :data:`BUCKET` batches' rows, as they come, the shortest texts make a batch, then the next longer ones; the
    batches of all are in random order.

    Args:
        rows: the rows in random order.
        x: texts as tokens (n, length), negative behind the last.
        size: rows of a batch.
        generator: draws the order of the batches.
        least: see :func:`in_batches`.
    """
    lengths = _lengths(x)
    parts = rows.split(BUCKET * size)
    ordered = [part[lengths[part].argsort(stable=True)] for part in parts]
    found = [batch for part in ordered for batch in in_batches(part, size, least)]
    return [found[place] for place in torch.randperm(len(found), generator=generator).tolist()]


def _lengths(x: Tensor) -> Tensor:
    """Return the lengths of texts (n, length), whose tokens are negative behind the last."""
    return (x >= 0).sum(dim=1)


def in_batches(rows: Tensor, size: int, least: int = 1) -> list[Tensor]:
    """Return rows in batches of ``size``; the last one may be smaller.

    If it has fewer than ``least`` rows, it joins the batch before.
    """
    parts = [*rows.split(size)]
    if len(parts) > 1 and len(parts[-1]) < least:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def least_batch(model: nn.Module, examples: Examples) -> int:
    """Return the fewest examples of a training batch: 2 if batch norm receives one number per channel from each."""
    network = model[0] if isinstance(model, nn.ModuleList) else model
    return 2 if len(examples) and has_lone_channels(network, examples.x[:1]) else 1


@contextmanager
def only_trainable(model: nn.Module, parameters: Iterable[Tensor]) -> Iterator[None]:
    """Context in which only ``parameters`` require gradients; those of the others are not computed."""
    chosen = {id(parameter) for parameter in parameters}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in chosen)
        yield
    finally:
        for parameter, trainable in before:
            parameter.requires_grad_(trainable)


def gradient_of(parameter: Tensor) -> Tensor:
    """Return ``parameter.grad``; if the loss does not depend on the parameter, it is set to zeros first."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def gradients(loss: Tensor, parameters: Sequence[Tensor], *, differentiable: bool = False) -> list[Tensor]:
    """Return the gradients of ``loss``, zeros for parameters that it does not depend on."""
    return list(
        torch.autograd.grad(loss, parameters, create_graph=differentiable, allow_unused=True, materialize_grads=True)
    )


@dataclass
class Correction:
    """A gradient hook that adds strength·(w − anchor) + shift to the gradient of each trained parameter w.

    Clients that train together can apply hooks of this kind, and no others.

    Attributes:
        strength: factor on the distance from the anchors.
        anchors: in the order of the network's parameters; empty: no such term.
        shifts: in the order of the network's parameters; empty: no such term.
        steps: number of steps that were corrected so far.
    """

    strength: float = 0.0
    anchors: Sequence[Tensor] = ()
    shifts: Sequence[Tensor] = ()
    steps: int = 0

    def __call__(self, model: nn.Module, rows: Tensor) -> None:
        """Change the gradients; frozen parameters stay as they are."""
        self.steps += 1
        trained = {place: parameter for place, parameter in enumerate(model.parameters()) if parameter.requires_grad}
        self.apply([*trained], [*trained.values()], [*map(gradient_of, trained.values())])

    @torch.no_grad()
    def apply(self, places: Sequence[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Add the corrections of the network's parameters with the numbers ``places`` to their gradients."""
        if self.anchors:
            distances = torch._foreach_sub(parameters, [self.anchors[place] for place in places])
            torch._foreach_add_(gradients, distances, alpha=self.strength)
        if self.shifts:
            torch._foreach_add_(gradients, [self.shifts[place] for place in places])


def pull_towards(anchors: Sequence[Tensor], strength: float) -> Correction:
    """Return a hook that adds the gradient of the proximal term strength/2·‖w − anchors‖².

    ``anchors`` are in the order of the network's parameters; frozen parameters stay as they are.
    """
    return Correction(strength, anchors)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Flush numbers below 10⁻³⁸ to zero.

    Processors compute with them many times slower, and the gradients of a recurrent network whose units are saturated
    are full of them: a round takes minutes instead of seconds.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@offered
@without_denormals()
def train(
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
    private: PrivateSteps | None = None,
    order: Order | None = None,
) -> Trained:
    """Train ``model`` in place on ``examples``, with the loss of ``task`` unless ``objective`` is given.

    Runs ``epochs`` epochs if given; else ``local-steps`` batches, if that is not 0; else ``local-epochs`` epochs.

    Args:
        model: the network; or, in a ``ModuleList``, the network and modules of an objective that are trained with it.
        examples: the training examples. While the training lasts, their inputs are those of its current epoch
            (:attr:`Examples.redraw`), also for an ``objective`` that reads them.
        settings: optimizer, batch size, number of epochs or steps.
        generator: draws the order of the examples; its seed is also that of layers that draw, such as dropout.
        task: what is learned.
        epochs: see above.
        gradient_hook: changes the gradients before each step.
        groups: parameters to train, with their learning rates; the others stay as they are, and so do those that do
            not require gradients. Default: all, at ``learning-rate``.
        weights: a weight ω_i ≥ 0 for each example, besides its own: a batch's loss is the mean of ω_i·ℓ_i. Default: 1
            each.
        objective: loss of a batch that is minimised instead.
        decay: factor on all learning rates.
        after_epoch: called after every epoch.
        fixed_norms: whether batch norm uses its running statistics, as in a test, without updating them.
        least: the fewest examples of a batch; a smaller last one joins the batch before. Default: :func:`least_batch`.
        private: for DP-SGD: its steps, which have noise, and draw the batches.
        order: gives the batches, from the place where an earlier training stopped. Default: ``generator`` draws them.

    Raises:
        RunError: if no parameter is left to train, or no batch has ``least`` examples.
    """
    groups = trained_groups(model, settings, groups)
    if not groups:
        raise RunError("nothing is trained: all parameters of this part of the network are frozen")
    descent = _Descent(model, groups, settings, decay, gradient_hook)
    if least is None:
        least = 1 if fixed_norms or private is not None else least_of(model, examples, settings.batch_size)
    if 0 < (largest := min(len(examples), settings.batch_size)) < least:
        raise RunError(
            f"batch norm needs at least {least} examples in a batch, and there is only {largest}: it has "
            f"{len(examples)} training examples, batch-size is {settings.batch_size}"
        )
    _begin(model, fixed_norms)
    total, seen = torch.zeros((), device=examples.y.device), 0
    # Layers that draw (dropout) get a stream of the client's own, since PyTorch's global one depends on other clients.
    draws = torch_draws(generator.initial_seed(), "layers")
    changing = _redrawn(examples, generator.initial_seed())
    trainable = only_trainable(model, descent.parameters)
    with draws, changing as redraw, trainable, _gradients(model, private) as (network, protected):
        own = weights_of(examples, weights)
        objective = objective or _loss(task, network, examples, own, each=protected is not None)

        def epoch() -> Iterator[Tensor]:
            redraw()
            yield from _epoch(examples, settings, generator, protected, least, order)

        def ended() -> None:
            if after_epoch is not None:
                after_epoch()
                _begin(model, fixed_norms)

        for rows in _rows(epoch, ended, settings, epochs):
            total += descent.step(rows, objective, protected) * len(rows)
            seen += len(rows)
        norm = descent.norm() if seen and private is None else None
    return Trained(float(total) / max(1, seen), norm)


class _Descent:
    """The steps of a training.

    Attributes:
        parameters: what is trained.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Group],
        settings: ClientSettings,
        decay: float,
        hook: GradientHook | None,
    ) -> None:
        self.parameters = [parameter for group in groups for parameter in group.parameters]
        self._optimizers = [make_optimizer(settings, group, decay) for group in groups]
        self._model, self._hook, self._longest = model, hook, settings.max_grad_norm
        self._part, self._half = settings.micro_batch, settings.precision == "bf16"
        self._norm: Tensor | None = None

    def step(self, rows: Tensor, objective: Objective, protected: PrivateGradients | None) -> Tensor:
        """Change the parameters by the gradients of a batch's loss; return the loss before."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss = self._backward(objective, rows, protected)
        if protected is not None:
            protected.protect()
        if self._hook is not None:
            self._hook(self._model, rows)
        if self._longest:
            self._norm = nn.utils.clip_grad_norm_(self.parameters, self._longest)
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()

    def _backward(self, objective: Objective, rows: Tensor, protected: PrivateGradients | None) -> Tensor:
        """Add up the gradients of a batch's loss, the mean over its examples, in parts of ``micro-batch``."""
        parts = rows.split(self._part) if self._part else [rows]
        losses = []
        for part in parts:
            share = len(part) / len(rows) if len(parts) > 1 else 1
            if protected is not None:
                losses.append(share * protected.backward(lambda rows: self._losses(objective, rows), part))
                continue
            loss = self._losses(objective, part)
            loss = share * loss if len(parts) > 1 else loss
            loss.backward()
            losses.append(loss)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _losses(self, objective: Objective, rows: Tensor) -> Tensor:
        """Return what the objective does, computed in the precision of the key."""
        with torch.autocast(rows.device.type, torch.bfloat16) if self._half else nullcontext():
            return objective(rows)

    def norm(self) -> float:
        """Return the norm of the last step's gradient; of no other, since this takes some per cent of a small step."""
        if self._norm is None:
            self._norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        return float(self._norm)


def least_of(model: nn.Module, examples: Examples, size: int) -> int:
    """Return the fewest examples of a batch of ``size``; to find out takes a forward pass, which most are spared."""
    return least_batch(model, examples) if size == 1 or len(examples) % size == 1 else 1


def _rows(
    epoch: Callable[[], Iterator[Tensor]], ended: Callable[[], None], settings: ClientSettings, epochs: int | None
) -> Iterator[Tensor]:
    """Yield the rows of each batch of a training: those of ``epoch``, as often as needed; call ``ended`` after each."""
    steps_left = settings.local_steps if epochs is None and settings.local_steps else -1
    epochs_left = epochs if epochs is not None else settings.local_epochs
    while steps_left > 0 or (steps_left < 0 and epochs_left > 0):
        for rows in epoch():
            yield rows
            steps_left -= 1
            if steps_left == 0:
                break
        epochs_left -= 1
        ended()


@contextmanager
def _redrawn(examples: Examples, seed: int) -> Iterator[Callable[[], None]]:
    """Context in which ``examples`` hold the inputs of the epoch that each call of the yielded function begins."""
    if examples.redraw is None:
        yield lambda: None
        return
    unchanged, epochs, draw = examples.x.clone(), count(), examples.redraw

    def redraw() -> None:
        examples.x.copy_(draw(seed, next(epochs)))

    try:
        yield redraw
    finally:
        examples.x.copy_(unchanged)


@contextmanager
def _gradients(model: nn.Module, private: PrivateSteps | None) -> Iterator[tuple[nn.Module, PrivateGradients | None]]:
    """Yield the network to compute losses with and, for DP-SGD, the object that makes its gradients private."""
    if private is None:
        yield model, None
        return
    from florilegium.privacy.dp_sgd import PrivateGradients  # Opacus takes long to import

    protected = PrivateGradients.of(model, private)
    try:
        yield protected.model, protected
    finally:
        protected.end()


def _epoch(
    examples: Examples,
    settings: ClientSettings,
    generator: torch.Generator,
    protected: PrivateGradients | None,
    least: int,
    order: Order | None,
) -> Iterator[Tensor]:
    """Yield the batches of an epoch: drawn, or the rest of a pass; for DP-SGD, as many Poisson-sampled batches."""
    size = settings.batch_size
    if order is not None:
        yield from order.rest(lambda rows: in_batches(rows.to(examples.y.device), size, least))
        return
    if protected is None:
        yield from batches(examples, size, generator, least, bucket=settings.bucket)
        return
    for _ in range(-(-len(examples) // size)):
        protected.forget()
        rows = protected.batch()
        if settings.bucket and not examples.x.is_floating_point():
            rows = rows[
                _lengths(examples.x[rows]).argsort(stable=True)
            ]  # the parts of ``micro-batch`` need less padding
        yield rows


def _begin(model: nn.Module, fixed_norms: bool) -> None:
    model.train()
    for norm in norms_of(model).values() if fixed_norms else ():
        norm.eval()


def _loss(task: Task, model: nn.Module, examples: Examples, weights: Tensor | None, *, each: bool) -> Objective:
    def objective(rows: Tensor) -> Tensor:
        outputs, y = model(examples.x[rows]).float(), examples.y[rows]  # bfloat16 with precision = "bf16"
        given = None if weights is None else weights[rows]
        if not each:
            return task.loss(outputs, y, given)
        return task.losses(outputs, y) if given is None else given * task.losses(outputs, y)

    return objective


def weights_of(examples: Examples, further: Tensor | None) -> Tensor | None:
    """Return the weights of examples times ``further`` ones, (n,); None: 1 each."""
    if examples.weights is None or further is None:
        return examples.weights if further is None else further
    return examples.weights * further


def mean_gradient(model: nn.Module, examples: Examples, parameters: Sequence[Tensor], task: Task) -> list[Tensor]:
    """Return the gradient of the mean loss over all ``examples`` with respect to ``parameters``, in evaluation mode."""
    model.eval()
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for rows in torch.arange(len(examples), device=examples.y.device).split(EVALUATION_BATCH):
        outputs, y = model(examples.x[rows]), examples.y[rows]
        if examples.weights is None:
            loss = task.total(outputs, y) / len(examples)
        else:
            loss = task.loss(outputs, y, examples.weights[rows]) * (len(y) / len(examples))
        for mean, part in zip(total, gradients(loss, parameters), strict=True):
            mean += part
    return total


@offered
@torch.no_grad()
def features(network: nn.Module, examples: Examples) -> Tensor:
    """Return the outputs of ``network`` in evaluation mode, (n, d): features of a body, logits of a whole network."""
    if any(module.training for module in network.modules()):  # to set it anew takes as long as a small forward pass
        network.eval()
    return torch.cat([network(x) for x in for_evaluation(examples.x)])


def for_evaluation(x: Tensor) -> list[Tensor]:
    """Return the batches of an evaluation; a single last input, without statistics of its own, joins the others."""
    parts = [*x.split(EVALUATION_BATCH)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def mapped(network: nn.Module, examples: Examples) -> Examples:
    """Return examples whose inputs are ``network``'s outputs, for the training of what follows it.

    They are computed once, or anew in every epoch if the inputs change.
    """
    redraw = examples.redraw

    def outputs(seed: int, epoch: int) -> Tensor:
        assert redraw is not None
        return features(network, Examples(redraw(seed, epoch), examples.y))

    return Examples(features(network, examples), examples.y, redraw and outputs, examples.weights)


def fixed_features(network: nn.Module, examples: Examples) -> Callable[[Tensor], Tensor]:
    """Return a function of rows: the features (b, d), in evaluation mode, of ``network`` as it is now.

    They are computed once; if the inputs change in every epoch, for each batch, by a copy of the network, which may
    train on.
    """
    if examples.redraw is None:
        known = features(network, examples).flatten(1)
        return lambda rows: known[rows]
    copied = deepcopy(network).eval().requires_grad_(False)
    return lambda rows: copied(examples.x[rows]).flatten(1)


@offered
@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, task: Task) -> dict[str, float]:
    """Return what the task measures of ``model``: the mean loss, figures; NaN if there are no examples."""
    if len(task.outputs) == 1 or not task.parts or not len(examples):
        return task.measure(features(model, examples), examples.y)
    # Outputs for each position of all examples, such as words of a vocabulary, may be larger than memory.
    size = max(1, min(EVALUATION_BATCH, MOST_OUTPUTS // math.prod(task.outputs)))
    model.eval()
    rows = [task.rows(model(x), y) for x, y in zip(examples.x.split(size), examples.y.split(size), strict=True)]
    return task.from_means(torch.cat([part for part in rows if part is not None]).mean(dim=0).tolist())
