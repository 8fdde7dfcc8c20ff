"""The one local training loop and the one evaluation loop, for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients.optimizers import SGD, Adam, Optimizer
from clients.settings import ClientSettings
from partitions.clientdata import Examples

GradientHook = Callable[[nn.Module], None]
"""Called after each backward pass, to change the gradients in place before the optimiser's step."""

EVALUATION_BATCH = 256


def make_optimizer(settings: ClientSettings, parameters: Sequence[Tensor]) -> Optimizer:
    """Return the configured optimiser over ``parameters``."""
    if settings.optimizer == "adam":
        return Adam(parameters, settings.learning_rate, settings.weight_decay)
    return SGD(parameters, settings.learning_rate, settings.momentum, settings.weight_decay)


def batches(examples: Examples, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch in random order, in batches of ``size``; the last one may be smaller."""
    order = torch.randperm(len(examples), generator=generator).to(examples.y.device)
    for rows in order.split(size):
        yield examples.x[rows], examples.y[rows]


def train(
    model: nn.Module,
    examples: Examples,
    settings: ClientSettings,
    generator: torch.Generator,
    *,
    epochs: int | None = None,
    gradient_hook: GradientHook | None = None,
) -> float:
    """Train ``model`` in place on ``examples`` with the cross-entropy loss.

    Runs ``epochs`` epochs if given; else ``local-steps`` batches, where that is not 0; else ``local-epochs`` epochs.

    Returns:
        The mean training loss per example over all steps, each before its update.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(settings, parameters)
    steps_left = settings.local_steps if epochs is None and settings.local_steps else -1
    epochs_left = epochs if epochs is not None else settings.local_epochs
    total, seen = torch.zeros((), device=examples.y.device), 0
    while steps_left > 0 or (steps_left < 0 and epochs_left > 0):
        for x, y in batches(examples, settings.batch_size, generator):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            if gradient_hook is not None:
                gradient_hook(model)
            if settings.max_grad_norm:
                nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            optimizer.step()
            total += loss.detach() * len(y)
            seen += len(y)
            steps_left -= 1
            if steps_left == 0:
                break
        epochs_left -= 1
    return float(total) / max(1, seen)


@torch.inference_mode()
def evaluate(model: nn.Module, examples: Examples) -> tuple[float, float]:
    """Return the mean cross-entropy loss and the accuracy (0..1) of ``model``; NaN where there are no examples."""
    model.eval()
    device = examples.y.device
    loss, correct = torch.zeros((), device=device), torch.zeros((), device=device)
    for x, y in zip(examples.x.split(EVALUATION_BATCH), examples.y.split(EVALUATION_BATCH), strict=True):
        logits = model(x)
        loss += cross_entropy(logits, y, reduction="sum")
        correct += (logits.argmax(dim=1) == y).sum()
    count = len(examples)
    return (float(loss) / count, float(correct) / count) if count else (float("nan"), float("nan"))
