"""Batch norm with statistics other than those from training: a client's own, or those of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Norm = nn.modules.batchnorm._BatchNorm
Moments = tuple[Tensor, Tensor]
"""Mean and variance of every channel, (c,) each."""


def norms_of(model: nn.Module) -> dict[str, Norm]:
    """Return the batch-norm layers of a network that keep statistics, by name, first to last."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Norm) and module.track_running_stats
    }


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return all layers of a network that have parameters of their own, by name, first to last."""
    return {
        name: module
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }


@torch.no_grad()
def measure(model: nn.Module, layers: Mapping[str, nn.Module], x: Tensor, batch: int) -> dict[str, Moments]:
    """Measure mean and (unbiased) variance of the inputs of ``layers``, in one evaluation pass over ``x``.

    Args:
        model: the network; the pass normalises with its own running statistics.
        layers: layers of the network, by name.
        x: inputs (n, …).
        batch: batch size of the pass; it affects the result only by rounding.

    Returns:
        Mean and variance of every channel, by the layer's name.
    """
    sums: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}

    def note(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()  # (c, everything else)
        parts = [values.sum(dim=1), values.square().sum(dim=1)]
        sums[name] = [a + b for a, b in zip(sums[name], parts, strict=True)] if name in sums else parts
        counts[name] = counts.get(name, 0) + values.shape[1]

    handles = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        model.eval()
        for part in x.split(batch):
            model(part)
    finally:
        for handle in handles:
            handle.remove()
    result = {}
    for name, (total, squares) in sums.items():
        count = counts[name]
        mean = total / count
        variance = (squares - count * mean**2).clamp(min=0) / max(1, count - 1)
        result[name] = mean.to(x.dtype), variance.to(x.dtype)
    return result


@torch.no_grad()
def recompute(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Recompute the buffers of a network by one pass in training mode, in which no parameter changes.

    Running statistics of batch norm become the means over the batches of each batch's mean and (unbiased) variance,
    weighted by the batches' sizes. Other buffers become what the layers make of them, from what they were.

    Args:
        model: the network.
        batches: inputs (b, …) each.
    """
    norms = norms_of(model).values()
    momenta, count = [norm.momentum for norm in norms], 0
    model.train()
    try:
        for x in batches:
            count += len(x)
            for norm in norms:
                norm.momentum = len(x) / count
            model(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@torch.no_grad()
def has_lone_channels(model: nn.Module, x: Tensor) -> bool:
    """Return whether some batch-norm layer receives a single number per channel for the one input ``x`` (1, …).

    It cannot train on such an input: one number has no variance. The pass is in evaluation mode.
    """
    counts: list[float] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        counts.append(inputs[0].numel() / inputs[0].shape[1])

    handles = [layer.register_forward_pre_hook(note) for layer in norms_of(model).values()]
    if not handles:
        return False
    try:
        model.eval()
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return min(counts, default=2) == 1


@torch.no_grad()
def give(model: nn.Module, statistics: Mapping[str, Moments]) -> None:
    """Replace the running statistics of the network's batch-norm layers by ``statistics``."""
    norms = norms_of(model)
    for name, (mean, variance) in statistics.items():
        running_mean, running_var = norms[name].running_mean, norms[name].running_var
        assert running_mean is not None
        assert running_var is not None
        running_mean.copy_(mean)
        running_var.copy_(variance)


def mix(pretrained: Moments, own: Moments, β: Tensor) -> Moments:
    """Return (1 − β)·pretrained + β·own for one layer and its β (FedL2P, equation 2)."""
    mean, variance = ((1 - β) * theirs + β * ours for theirs, ours in zip(pretrained, own, strict=True))
    return mean, variance


def distance(p: Moments, q: Moments, eps: float) -> Tensor:
    """Return ξ, the mean over channels of (KL(P‖Q) + KL(Q‖P))/2 of two Gaussians (FedL2P, equation 3).

    ``eps`` is added to the variances, as in the batch-norm layer.
    """
    (μ, u), (ν, w) = p, q
    u, w, square = u + eps, w + eps, (μ - ν).square()
    return (((u + square) / w + (w + square) / u - 2) / 4).mean()


class DifferentiableStatistics(TorchFunctionMode):
    """Within this context, batch norm in evaluation mode is also differentiable in its statistics.

    A batch norm directly after a convolution is folded into the convolution's weights, so that derivatives of any order
    only pass through one convolution. (Other uses of the convolution's outputs are not affected.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._convolution: tuple[Tensor, int, tuple[Any, ...]] | None = None  # outputs, their version, arguments

    def __exit__(self, *args: Any) -> None:
        """Leave the context and release the tensors of the last convolution."""
        self._convolution = None
        super().__exit__(*args)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute batch norm by elementary operations, since PyTorch's own treats the statistics as constants."""
        kwargs = kwargs or {}
        if func is torch.conv2d and len(args) == 7 and not kwargs:
            outputs = func(*args)
            self._convolution = outputs, outputs._version, args
            return outputs
        if func is not functional.batch_norm or kwargs.get("training"):
            return func(*args, **kwargs)
        x, mean, variance = args[:3]
        scale = (variance + kwargs["eps"]).rsqrt()
        if kwargs["weight"] is not None:
            scale = scale * kwargs["weight"]
        shift = -mean * scale if kwargs["bias"] is None else kwargs["bias"] - mean * scale
        before, self._convolution = self._convolution, None
        if before is not None and before[0] is x and before[1] == x._version and x.dtype == scale.dtype:
            given, weight, bias, *how = before[2]
            return torch.conv2d(
                given, weight * scale.view(-1, 1, 1, 1), shift if bias is None else bias * scale + shift, *how
            )
        shape = (1, -1, *[1] * (x.dim() - 2))
        return x * scale.view(shape) + shift.view(shape)


class BatchStatistics(nn.Module):
    """A network that normalises with the statistics of each batch, in evaluation mode too.

    A single input whose channels are single numbers has none: it is normalised with the running statistics.

    Args:
        network: the network to wrap.
    """

    onnx_gap: ClassVar[str] = "it normalises with the statistics of each batch (finetune-bn = 'batch')"
    """Why the model cannot be written as ONNX."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's outputs, with only the batch-norm layers in training mode."""
        if x.shape[0] == 1 and has_lone_channels(self.network, x):
            alone: Tensor = self.network(x)
            return alone
        norms = norms_of(self.network).values()
        kept = [(norm.training, norm.momentum) for norm in norms]
        try:
            for norm in norms:
                norm.train()
                norm.momentum = 0.0  # the running statistics stay as they are
            result: Tensor = self.network(x)
            return result
        finally:
            for norm, (training, momentum) in zip(norms, kept, strict=True):
                norm.train(training)
                norm.momentum = momentum
