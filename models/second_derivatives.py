"""Convolution and max-pooling with fast second derivatives, for gradients of gradients.

PyTorch computes second derivatives of a convolution by convolutions of unusual shapes (batch and channels swapped),
which are slow on CPUs, and those of max-pooling in another memory layout than the images'. Here both use the same
operations as ordinary training. Values and derivatives equal PyTorch's, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_differentiate = torch.ops.aten.convolution_backward


class CheapSecondDerivatives(TorchFunctionMode):
    """Within this context, gradients of gradients (``create_graph = True``) of a network are cheap to compute."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace convolution and max-pooling by the functions below, if their arguments are supported."""
        kwargs = kwargs or {}
        if func is torch.conv2d and len(args) == 7 and not isinstance(args[4], str):
            return _Convolution.apply(*args)
        if func is functional.max_pool2d and _is_plain(args[1], kwargs):
            return _MaxPooling.apply(*args)
        return func(*args, **kwargs)


def _is_plain(kernel: object, options: Mapping[str, Any]) -> bool:
    """Return whether pooling windows lie side by side, without overlap, gaps or padding."""
    alone = options.get("stride") in (None, kernel) and options.get("padding") == 0 and options.get("dilation") == 1
    return alone and not options.get("ceil_mode") and not options.get("return_indices")


class _Convolution(Function):
    """Convolution y = x ∗ w + b, with a fast second derivative."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.how = (stride, padding, dilation, groups)
        return torch.conv2d(x, w, b, *ctx.how)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        x, w = ctx.saved_tensors
        (gy,) = outer
        gx, gw, gb = _ConvolutionGradient.apply(gy, x, w, ctx.how, ctx.needs_input_grad[0], ctx.needs_input_grad[2])
        return gx, gw, gb, None, None, None, None


def _gradients(
    gy: Tensor, x: Tensor, w: Tensor, how: Any, of_x: bool, of_w: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ⟨gy, x ∗ w⟩ in x and w, or None for a gradient that is not requested."""
    stride, padding, dilation, groups = how
    gx, gw, _ = _differentiate(gy, x, w, None, stride, padding, dilation, False, [0, 0], groups, [of_x, of_w, False])
    return gx, gw


class _ConvolutionGradient(Function):
    """The gradients (gx, gw, gb) of ⟨gy, x ∗ w + b⟩, as a function that can itself be differentiated."""

    @staticmethod
    def forward(ctx: Any, gy: Tensor, x: Tensor, w: Tensor, how: Any, of_x: bool, of_b: bool) -> Any:
        ctx.save_for_backward(gy, x, w)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return *_gradients(gy, x, w, how, of_x, of_w=True), gy.sum(dim=(0, 2, 3)) if of_b else None

    @staticmethod
    def backward(ctx: Any, *outer: Tensor | None) -> Any:
        gy, x, w = ctx.saved_tensors
        hx, hw, hb = outer
        pairs = [(a, b) for a, b in ((hx, w), (x, hw)) if a is not None and b is not None]
        # hb is added to every pixel; as the bias of a convolution this needs no separate pass.
        parts = [torch.conv2d(a, b, None if i else hb, *ctx.how) for i, (a, b) in enumerate(pairs)]
        of_gy = parts[0].add_(parts[1]) if len(parts) == 2 else next(iter(parts), None)
        if of_gy is None and hb is not None:
            of_gy = hb.view(1, -1, 1, 1).expand_as(gy)
        of_x = _gradients(gy, x, hw, ctx.how, True, False)[0] if hw is not None and ctx.needs_input_grad[1] else None
        of_w = _gradients(gy, hx, w, ctx.how, False, True)[1] if hx is not None and ctx.needs_input_grad[2] else None
        return of_gy, of_x, of_w, None, None, None


class _MaxPooling(Function):
    """Max-pooling over windows side by side, with a fast second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any) -> Tensor:
        y, chosen = functional.max_pool2d(x, kernel, return_indices=True)
        ctx.save_for_backward(x, chosen)
        ctx.kernel = kernel
        return y

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return _MaxPoolingGradient.apply(*outer, *ctx.saved_tensors, ctx.kernel), None


class _MaxPoolingGradient(Function):
    """The gradient of max-pooling: it puts each entry of gy at the pixel that was the maximum of its window."""

    @staticmethod
    def forward(ctx: Any, gy: Tensor, x: Tensor, chosen: Tensor, kernel: Any) -> Tensor:
        ctx.save_for_backward(chosen)
        size = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
        gx: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(gy, x, size, size, [0, 0], [1, 1], False, chosen)
        return gx

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        (hx,), (chosen,) = outer, ctx.saved_tensors
        # In channels-last order, as images are stored in memory: (n, pixels, channels).
        by_pixel, numbers = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (hx, chosen))
        n, _, height, width = chosen.shape
        return by_pixel.gather(1, numbers).view(n, height, width, -1).permute(0, 3, 1, 2), None, None, None
