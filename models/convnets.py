"""Small convolutional networks from the papers, as ordered named blocks.

In each convolution block, max-pooling comes before the ReLU. Both orders give the same values and gradients (max and
ReLU commute), and the ReLU then processes only a quarter of the pixels.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

Shape = tuple[int, ...]


def _conv_block(channels_in: int, channels_out: int, *, flatten: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels_in, channels_out, 5), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.Flatten()] if flatten else []))


def _norm_block(channels_in: int, channels_out: int, *, flatten: bool = False) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(channels_out), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.Flatten()] if flatten else []))


def _dense_block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def _pooled(side: int) -> int:
    """Return the side length after a 5×5 convolution without padding and 2×2 pooling."""
    return (side - 4) // 2


def _convnet(shape: Shape, classes: int, channels: tuple[int, int], widths: tuple[int, ...]) -> nn.Sequential:
    """Build two convolution blocks, ``len(widths)`` dense blocks and a linear output block."""
    if len(shape) != 3 or _pooled(_pooled(min(shape[1:]))) < 1:
        raise ValueError(f"convolutional networks need images of at least 16×16 pixels, not inputs of shape {shape}")
    depth, height, width = shape
    features = channels[1] * _pooled(_pooled(height)) * _pooled(_pooled(width))
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["conv1"] = _conv_block(depth, channels[0])
    blocks["conv2"] = _conv_block(channels[0], channels[1], flatten=True)
    for index, (inputs, outputs) in enumerate(zip((features, *widths), widths, strict=False), start=1):
        blocks[f"fc{index}"] = _dense_block(inputs, outputs)
    blocks[f"fc{len(widths) + 1}"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(blocks)


def fcn(shape: Shape, classes: int) -> nn.Sequential:
    """A fully convolutional network for segmentation: conv 16, 32, 32 of 3×3, C outputs for each pixel.

    The second and third convolutions are dilated by 2 and 4, so that each pixel sees 15×15 others.
    """
    if len(shape) != 3:
        raise ValueError(f"the fully convolutional network needs images, not inputs of shape {shape}")
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(((shape[0], 16), (16, 32), (32, 32))):
        spread = 2**number
        layers = nn.Conv2d(inputs, outputs, 3, padding=spread, dilation=spread), nn.ReLU()
        blocks[f"conv{number + 1}"] = nn.Sequential(*layers)
    blocks["out"] = nn.Conv2d(32, classes, 1)
    return nn.Sequential(blocks)


def lenet(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet of Scott's thesis, Table B.1: conv 16, conv 32, dense 120, 84, C."""
    return _convnet(shape, classes, (16, 32), (120, 84))


def cnn64(shape: Shape, classes: int) -> nn.Sequential:
    """The CIFAR-10 network of FedRep (Collins et al. 2021) and PPFE: conv 64, 64, dense 120, 64, C.

    307,842 parameters for C = 10.
    """
    return _convnet(shape, classes, (64, 64), (120, 64))


def cnn128(shape: Shape, classes: int) -> nn.Sequential:
    """The CIFAR-100 sibling of ``cnn64``: conv 64, 128, dense 256, 128, C (1,075,044 parameters for C = 100)."""
    return _convnet(shape, classes, (64, 128), (256, 128))


def cnn(shape: Shape, classes: int) -> nn.Sequential:
    """The network of McMahan et al. 2017, in the size that FLowDUP uses: conv 32, 64, dense 60, C.

    FLowDUP says that a subspace of 10⁴ dimensions is 15 times smaller than the network, which must therefore have about
    150,000 parameters; a dense layer of 60 units gives 150,366 on CIFAR-10.
    """
    return _convnet(shape, classes, (32, 64), (60,))


def cnn512(shape: Shape, classes: int) -> nn.Sequential:
    """The network of PFLlib's leaderboard, the size of McMahan et al. 2017: conv 32, 64, dense 512, C.

    582,026 parameters for 28×28 grey pixels and C = 10; 878,538 on CIFAR-10.
    """
    return _convnet(shape, classes, (32, 64), (512,))


def cnn_bn(shape: Shape, classes: int) -> nn.Sequential:
    """A small network with batch norm: 3×3 convolutions of 32, 64, 128, each with 2×2 pooling, then C.

    It has 113,962 parameters on CIFAR-10, few enough to try FedL2P without a GPU (the paper uses ResNet-18).
    """
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(f"convolutional networks need images of at least 8×8 pixels, not inputs of shape {shape}")
    depth, height, width = shape
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["conv1"] = _norm_block(depth, 32)
    blocks["conv2"] = _norm_block(32, 64)
    blocks["conv3"] = _norm_block(64, 128, flatten=True)
    blocks["fc"] = nn.Linear(128 * (height // 8) * (width // 8), classes)
    return nn.Sequential(blocks)
