"""Random changes of training images: key ``augment``.

Every epoch of local training sees each image changed anew. The draws depend on the training's seed (run, client, round,
phase) and the number of the epoch alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from florilegium.common.calls import Call, parse_calls
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.partitions.spec import DatasetSpec

PADDING = 4
"""Pixels by which ``crop-flip`` moves an image at most, in each direction."""

CHUNK = 32
"""Images that are changed in one go: larger temporary arrays cost more in fresh memory than in arithmetic."""

Augmentation = Callable[[Tensor, int, int], Tensor]
"""Returns images (n, channels, height, width), normalised, changed at random; given also a seed and an epoch."""


def augmentation_of(text: str, spec: DatasetSpec) -> Augmentation | None:
    """Return what key ``augment`` = ``text`` does to training images of a dataset; None for ``none``.

    Raises:
        ConfigurationError: if the dataset has no images, torchvision has no such transform, or it cannot be applied.
    """
    if text == "none":
        return None
    if spec.kind != "image":
        raise ConfigurationError(f"augment: '{text}' changes images, but '{spec.name}' has none; set augment = 'none'")
    if text == "crop-flip":
        return partial(crop_and_flip, [-m / s for m, s in zip(spec.mean, spec.std, strict=True)])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    transform = partial(_transformed, [_transform(call) for call in parse_calls(text)], mean, std)
    _try(text, transform, spec.shape)
    return transform


def crop_and_flip(black: Sequence[float], x: Tensor, seed: int, epoch: int) -> Tensor:
    """Shift each image by up to 4 pixels in both directions, and mirror half of them from left to right.

    That is a crop of the image's size from the image with a margin of 4 pixels (He et al. 2016, section 4.2).

    Args:
        black: normalised value of black, which fills the margin, of each channel.
        x: images (n, channels, height, width).
        seed, epoch: see :data:`Augmentation`.
    """
    generator = torch_generator(seed, "augment", epoch)
    n, channels, height, width = x.shape
    down, right = torch.randint(2 * PADDING + 1, (2, n), generator=generator).to(x.device)
    mirrored = (torch.rand(n, generator=generator) < 0.5).view(-1, 1, 1, 1).to(x.device)
    result = torch.empty_like(x)
    for begin in range(0, n, CHUNK):
        part = slice(begin, begin + CHUNK)
        own = x[part]
        padded = x.new_empty(len(own), channels, height + 2 * PADDING, width + 2 * PADDING)
        for channel, value in enumerate(black):
            padded[:, channel] = value  # a fill, ten times faster than one broadcast over all channels
        padded[:, :, PADDING : PADDING + height, PADDING : PADDING + width] = own
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (n, channels, 9, 9, height, width), a view
        crops = windows[torch.arange(len(own), device=x.device), :, down[part], right[part]]
        result[part] = torch.where(mirrored[part], crops.flip(-1), crops)
    return result


def _transform(call: Call) -> torch.nn.Module:
    """Return torchvision's transform of this name.

    Raises:
        ConfigurationError: if it has none, or takes other arguments.
    """
    from torchvision.transforms import v2  # takes a second, and few runs need it

    known = {name for name, kind in vars(v2).items() if inspect.isclass(kind) and issubclass(kind, v2.Transform)}
    if call.name not in known:
        raise ConfigurationError(
            f"augment: '{call.name}' is neither 'none', 'crop-flip' nor a transform of torchvision.transforms.v2, such "
            "as RandomHorizontalFlip or RandomRotation(degrees=10)"
        )
    try:
        made: torch.nn.Module = getattr(v2, call.name)(*call.positional, **call.named)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"augment: {call.name}: {error}") from None
    return made


def _transformed(
    transforms: Sequence[torch.nn.Module], mean: Tensor, std: Tensor, x: Tensor, seed: int, epoch: int
) -> Tensor:
    """Apply transforms to each image for itself, with pixels from 0 to 1."""
    mean, std = mean.to(x), std.to(x)
    with torch_draws(seed, "augment", epoch):
        images = list(x * std + mean)
        for transform in transforms:
            images = [transform(image) for image in images]
    return (torch.stack(images) - mean) / std if images else x


def _try(text: str, augmentation: Augmentation, shape: Sequence[int]) -> None:
    """Raise :class:`ConfigurationError` if ``augmentation`` cannot change images of this shape."""
    try:
        changed = augmentation(torch.zeros(1, *shape), 0, 0)
    except Exception as error:  # a transform may raise anything
        raise ConfigurationError(f"augment: '{text}' fails on images of shape {tuple(shape)}: {error}") from None
    if changed.shape != (1, *shape) or not changed.is_floating_point():
        raise ConfigurationError(
            f"augment: '{text}' makes images of shape {tuple(changed.shape[1:])}, type {changed.dtype}, from floating-"
            f"point ones of shape {tuple(shape)}; use transforms that keep both"
        )
