"""Losses of single targets: of one class, of yes or no, of a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from florilegium.tasks.choices import Choices

if TYPE_CHECKING:
    from torch import Tensor

    Function = Callable[[Tensor, Tensor, Choices], Tensor]

IGNORED = -100
"""The class of positions that count for nothing, as PyTorch's ``cross_entropy`` has it."""

LOGITS, LOGIT, NUMBER, RISK, LOG_RATE = "logits", "logit", "number", "risk", "log-rate"
"""Forms of outputs: a logit for each class, one for yes, a number, a score of risk, the logarithm of a number."""


@dataclass(frozen=True)
class Loss:
    """A loss, in each form of outputs that it has.

    Attributes:
        title: what it is, in a few words.
        of: by form, a function of outputs, targets and the configuration's choices. It returns the loss of each single
            target, in the shape of the targets; ``IGNORED`` targets have the loss 0.
    """

    title: str
    of: Mapping[str, Function]


def cross_entropy(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return −log p of the class of each target, for logits (n, C, …) and classes (n, …)."""
    from torch.nn.functional import cross_entropy as of

    return of(outputs, y, reduction="none", ignore_index=IGNORED)


def smoothed_cross_entropy(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return the cross-entropy with the distribution (1 − ε)·[class] + ε / C (Szegedy et al. 2016, section 7)."""
    from torch.nn.functional import cross_entropy as of

    return of(outputs, y, reduction="none", ignore_index=IGNORED, label_smoothing=choices.label_smoothing)


def yes_or_no(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return −log p of each target 0 or 1, for logits of 1 in the shape of the targets."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    return binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")


def smoothed_yes_or_no(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return the cross-entropy with the target (1 − ε)·y + ε / 2."""
    ε = choices.label_smoothing
    return yes_or_no(outputs, (1 - ε) * y.to(outputs.dtype) + ε / 2, choices)


def focal(likelihood: Function) -> Function:
    """Return the focal loss −(1 − p)^γ log p (Lin et al. 2017, equation 4, without α) of a loss that is −log p."""

    def loss(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
        surprise = likelihood(outputs, y, choices)
        # −expm1(−s) = 1 − p keeps its digits where p is near 1; a power below 1 would have no derivative at 0.
        return (-(-surprise).expm1()).clamp(min=1e-12) ** choices.focal_gamma * surprise

    return loss


def squared(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return squared errors."""
    return (outputs - y).square()


def absolute(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return absolute errors."""
    return (outputs - y).abs()


def huber(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return e²/2 of an error e of at most 1, and |e| − 1/2 of a larger one (Huber 1964)."""
    from torch.nn.functional import huber_loss

    return huber_loss(outputs, y, reduction="none")


def poisson(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return μ − y + y·log(y/μ) of outputs log μ: −log p of a Poisson distribution, less that of μ = y."""
    return outputs.exp() - y * outputs + y.xlogy(y) - y


CROSS_ENTROPY = Loss("−log p of the target", {LOGITS: cross_entropy, LOGIT: yes_or_no})
FOCAL = Loss("focal loss −(1 − p)^γ log p", {LOGITS: focal(cross_entropy), LOGIT: focal(yes_or_no)})
SMOOTHED = Loss(
    "cross-entropy with smoothed targets", {LOGITS: smoothed_cross_entropy, LOGIT: smoothed_yes_or_no}
)  # fmt: skip
SQUARED = Loss("squared error", {NUMBER: squared})
ABSOLUTE = Loss("absolute error", {NUMBER: absolute})
POISSON = Loss("μ − y + y·log(y/μ)", {LOG_RATE: poisson})
HUBER = Loss("squared error of errors up to 1, then absolute", {NUMBER: huber})
