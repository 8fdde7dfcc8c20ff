"""Residual networks, as ordered named blocks."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torchvision.models.resnet import resnet18 as torchvision_resnet18

Shape = tuple[int, ...]


def _check_images(shape: Shape) -> None:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(f"residual networks need images of at least 8×8 pixels, not inputs of shape {shape}")


def resnet18(shape: Shape, classes: int) -> nn.Sequential:
    """torchvision's ResNet-18 (He et al. 2016) with the CIFAR stem: 3×3 convolution of stride 1, no max-pooling."""
    return _resnet18(shape, classes, nn.Conv2d(shape[0], 64, 3, stride=1, padding=1, bias=False))


def resnet18_imagenet(shape: Shape, classes: int) -> nn.Sequential:
    """torchvision's ResNet-18 unchanged, for larger images: 7×7 convolution of stride 2, max-pooling."""
    return _resnet18(shape, classes, nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False), nn.MaxPool2d(3, 2, 1))


def _resnet18(shape: Shape, classes: int, stem: nn.Conv2d, *pooling: nn.Module) -> nn.Sequential:
    _check_images(shape)
    base = torchvision_resnet18(num_classes=classes)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(stem, base.bn1, nn.ReLU(), *pooling),
            layer1=base.layer1,
            layer2=base.layer2,
            layer3=base.layer3,
            layer4=nn.Sequential(base.layer4, base.avgpool, nn.Flatten()),
            fc=base.fc,
        )
    )


class _PlainBlock(nn.Module):
    """Two 3×3 convolutions and a skip connection, without normalisation.

    The skip connection of a block that halves the image subsamples it and pads the new channels with zeros
    (option A of He et al. 2016), so it has no parameters. The last convolution starts at zero, so that every
    block starts as the identity and twenty layers train without batch norm (Zhang et al. 2019, "Fixup").
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1)
        nn.init.kaiming_normal_(self.conv1.weight, nonlinearity="relu")
        nn.init.zeros_(self.conv2.weight)
        for layer in (self.conv1, self.conv2):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        skip = x[:, :, :: self.stride, :: self.stride]
        if new_channels := self.conv1.out_channels - self.conv1.in_channels:
            skip = nn.functional.pad(skip, (0, 0, 0, 0, 0, new_channels))
        return torch.relu(skip + self.conv2(torch.relu(self.conv1(x))))


def resnet20(shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-20 for CIFAR (He et al. 2016, section 4.2) without batch norm: stem, three groups of three blocks, C."""
    _check_images(shape)
    stem = nn.Conv2d(shape[0], 16, 3, 1, 1)
    blocks: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem, nn.ReLU()))
    channels = 16
    for group, width in enumerate((16, 32, 64), start=1):
        layers: list[nn.Module] = []
        for index in range(3):
            layers.append(_PlainBlock(channels, width, stride=2 if index == 0 and group > 1 else 1))
            channels = width
        if group == 3:
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        blocks[f"layer{group}"] = nn.Sequential(*layers)
    blocks["fc"] = nn.Linear(channels, classes)
    return nn.Sequential(blocks)
