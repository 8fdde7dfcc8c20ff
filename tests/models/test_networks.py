"""Tests of models.networks and the networks themselves: sizes by hand, named blocks, seeds, wrong inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.networks import NETWORKS, build

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _conv(inputs: int, outputs: int, side: int) -> int:
    """Weights and biases of a convolution with square kernels."""
    return outputs * (inputs * side**2 + 1)


def _dense(inputs: int, outputs: int) -> int:
    return outputs * (inputs + 1)


def _lstm(inputs: int, hidden: int) -> int:
    """Four gates, each with an input matrix, a recurrent matrix and torch's two bias vectors."""
    return 4 * (inputs * hidden + hidden * hidden + 2 * hidden)


# Image sides: 32 -conv5-> 28 -pool-> 14 -conv5-> 10 -pool-> 5, and 28 -> 24 -> 12 -> 8 -> 4.
SIZES = {
    # Scott's thesis, Table B.1: conv 5×5×16, pool, conv 5×5×32, pool, 120, 84, C.
    ("lenet", CIFAR, 10): [
        _conv(3, 16, 5), _conv(16, 32, 5), _dense(32 * 5 * 5, 120), _dense(120, 84), _dense(84, 10)
    ],
    ("lenet", MNIST, 62): [
        _conv(1, 16, 5), _conv(16, 32, 5), _dense(32 * 4 * 4, 120), _dense(120, 84), _dense(84, 62)
    ],
    ("cnn64", CIFAR, 10): [
        _conv(3, 64, 5), _conv(64, 64, 5), _dense(64 * 5 * 5, 120), _dense(120, 64), _dense(64, 10)
    ],
    ("cnn128", CIFAR, 100): [
        _conv(3, 64, 5), _conv(64, 128, 5), _dense(128 * 5 * 5, 256), _dense(256, 128), _dense(128, 100)
    ],
    ("cnn", CIFAR, 10): [_conv(3, 32, 5), _conv(32, 64, 5), _dense(64 * 5 * 5, 60), _dense(60, 10)],
    ("cnn512", MNIST, 10): [_conv(1, 32, 5), _conv(32, 64, 5), _dense(64 * 4 * 4, 512), _dense(512, 10)],
    ("linear", (100,), 1): [_dense(100, 1)],
    ("mlp", (1, 8, 8), 10): [_dense(64, 64), _dense(64, 32), _dense(32, 10)],
    ("mlp", (108,), 2): [_dense(108, 64), _dense(64, 32), _dense(32, 2)],
    # He et al. 2016, section 4.2, with biases instead of batch norm: three groups of three blocks of two layers.
    ("resnet20", CIFAR, 10): [
        _conv(3, 16, 3),
        6 * _conv(16, 16, 3),
        _conv(16, 32, 3) + 5 * _conv(32, 32, 3),
        _conv(32, 64, 3) + 5 * _conv(64, 64, 3),
        _dense(64, 10),
    ],
    ("char-lstm", (80,), 80): [VOCABULARY_SIZE * 8, _lstm(8, 256) + _lstm(256, 256), _dense(256, 80)],
    ("centers", (1, 8, 8), 10): [10 * 64],
    # 100 trees for each class, of 15 nodes with four numbers and 16 leaves, and a bias for each class.
    ("trees", (1, 8, 8), 10): [1000 * (4 * 15 + 16) + 10],
    ("trees", (108,), 2): [100 * (4 * 15 + 16) + 1],
    ("char-lstm-steps", (80,), 80): [VOCABULARY_SIZE * 8, _lstm(8, 256) + _lstm(256, 256), _dense(256, 80)],
    ("fcn", CIFAR, 10): [_conv(3, 16, 3), _conv(16, 32, 3), _conv(32, 32, 3), 330],
    ("word-lstm", (25, 300), 2): [_lstm(300, 128), _dense(128, 64), _dense(64, 32), _dense(32, 2)],
}  # fmt: skip
BLOCKS = {
    "lenet": ["conv1", "conv2", "fc1", "fc2", "fc3"],
    "cnn64": ["conv1", "conv2", "fc1", "fc2", "fc3"],
    "cnn128": ["conv1", "conv2", "fc1", "fc2", "fc3"],
    "cnn": ["conv1", "conv2", "fc1", "fc2"],
    "cnn512": ["conv1", "conv2", "fc1", "fc2"],
    "cnn-bn": ["conv1", "conv2", "conv3", "fc"],
    "linear": ["fc"],
    "mlp": ["fc1", "fc2", "fc3"],
    "resnet18": ["stem", "layer1", "layer2", "layer3", "layer4", "fc"],
    "resnet18-imagenet": ["stem", "layer1", "layer2", "layer3", "layer4", "fc"],
    "resnet20": ["stem", "layer1", "layer2", "layer3", "fc"],
    "char-lstm": ["embedding", "lstm", "fc"],
    "word-lstm": ["lstm", "fc1", "fc2", "fc3"],
    "centers": ["nearest"],
    "trees": ["trees"],
    "char-lstm-steps": ["embedding", "lstm", "fc"],
    "fcn": ["conv1", "conv2", "conv3", "out"],
}
POSITIONS = {"char-lstm-steps": (80,), "fcn": (32, 32)}
INPUTS = {
    "char-lstm": (80,),
    "char-lstm-steps": (80,),
    "word-lstm": (25, 300),
    "linear": (1, 8, 8),
    "mlp": (1, 8, 8),
    "centers": (1, 8, 8),
}


def _inputs(name: str, count: int) -> torch.Tensor:
    shape = INPUTS.get(name, CIFAR)
    generator = torch.Generator().manual_seed(0)
    if name.startswith("char-lstm"):
        return torch.randint(VOCABULARY_SIZE, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


class TestSizes:
    @pytest.mark.parametrize(("key", "sizes"), SIZES.items(), ids=lambda value: "-".join(map(str, value)))
    def test_every_block_has_the_size_computed_by_hand(self, key, sizes):
        assert [_size(block) for block in build(*key, seed=1, positions=POSITIONS.get(key[0], ()))] == sizes

    @pytest.mark.parametrize(
        ("name", "classes", "total"), [("cnn64", 10, 307_842), ("cnn128", 100, 1_075_044), ("cnn", 10, 150_366)]
    )
    def test_totals_that_the_papers_state(self, name, classes, total):
        assert sum(SIZES[name, CIFAR, classes]) == total  # the layers above are those of the papers
        assert _size(build(name, CIFAR, classes, seed=1)) == total

    def test_shares_of_cnn128_that_ppfe_communicates(self):
        network = build("cnn128", CIFAR, 100, seed=1)
        assert round(100 * _size(network[:-1]) / _size(network), 1) == 98.8  # all but the last layer
        assert round(100 * _size(network[:-3]) / _size(network), 1) == 19.5  # all but the three dense layers


class TestBlocks:
    def test_every_network_is_listed_here(self):
        assert BLOCKS.keys() == NETWORKS.keys()

    @pytest.mark.parametrize("name", NETWORKS)
    def test_blocks_are_named_in_the_order_of_the_forward_pass(self, name):
        positions = POSITIONS.get(name, ())
        network = build(name, INPUTS.get(name, CIFAR), 10, seed=1, positions=positions).eval()
        assert [block for block, _ in network.named_children()] == BLOCKS[name]
        x = _inputs(name, 2)
        step = x
        for block in BLOCKS[name]:
            step = network.get_submodule(block)(step)
        assert step.shape == (2, 10, *positions)
        assert torch.equal(step, network(x))

    @pytest.mark.parametrize("name", ["lenet", "cnn64", "cnn128", "cnn", "resnet18", "resnet20"])
    def test_convolutions_are_in_channels_last_layout(self, name):
        weights = [m.weight for m in build(name, CIFAR, 10, seed=1).modules() if isinstance(m, nn.Conv2d)]
        assert weights
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


class TestConvnets:
    @pytest.mark.parametrize("name", ["lenet", "cnn64"])
    def test_pooling_before_the_relu_changes_neither_values_nor_gradients(self, name):
        network = build(name, CIFAR, 10, seed=3).double()
        x, y = _inputs(name, 6).double(), torch.arange(6)

        def usual_order(inputs):
            for block in network:
                if isinstance(block, nn.Sequential) and isinstance(block[0], nn.Conv2d):
                    assert [type(layer) for layer in block[:3]] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
                    inputs = nn.functional.max_pool2d(torch.relu(block[0](inputs)), 2)
                    inputs = inputs if len(block) == 3 else inputs.flatten(1)
                else:
                    inputs = block(inputs)
            return inputs

        def gradients(forward):
            logits = forward(x)
            return logits, torch.autograd.grad(nn.functional.cross_entropy(logits, y), tuple(network.parameters()))

        ours, theirs = gradients(network), gradients(usual_order)
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-12)
        for mine, other in zip(ours[1], theirs[1], strict=True):
            assert other.abs().max() > 0
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)

    def test_images_of_16_pixels_are_the_smallest(self):
        assert build("lenet", (1, 16, 40), 10, seed=1)(torch.zeros(2, 1, 16, 40)).shape == (2, 10)


class TestResidualNetworks:
    def test_resnet18_is_torchvisions_with_another_stem(self):
        from torchvision.models import resnet18

        reference = resnet18(num_classes=100)
        reference.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        reference.maxpool = nn.Identity()
        network = build("resnet18", CIFAR, 100, seed=1)
        assert _size(network) == _size(reference)
        # Both list their tensors from the input to the output, so the reference takes ours over in order.
        tensors = zip(reference.state_dict(), network.state_dict().values(), strict=True)
        reference.load_state_dict(dict(tensors))
        x = _inputs("resnet18", 2)
        torch.testing.assert_close(network.train()(x), reference.train()(x), rtol=1e-4, atol=1e-4)

    def test_resnet20_has_no_batch_norm(self):
        network = build("resnet20", CIFAR, 10, seed=1)
        assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
        assert list(network.buffers()) == []
        assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 19  # and one dense layer

    def test_resnet20_starts_with_identity_blocks(self):
        network = build("resnet20", CIFAR, 10, seed=1)
        after = [network.stem(_inputs("resnet20", 2))]
        for layer in (network.layer1, network.layer2, network.layer3[:3]):
            after.append(layer(after[-1]))
        stem, layer1, layer2, layer3 = after
        assert stem.abs().max() > 0
        torch.testing.assert_close(layer1, stem, rtol=0, atol=0)
        # A group that halves the image keeps every second pixel and pads new channels with zeros.
        for before, halved in ((layer1, layer2), (layer2, layer3)):
            channels = before.shape[1]
            torch.testing.assert_close(halved[:, :channels], before[:, :, ::2, ::2], rtol=0, atol=0)
            assert halved.shape[1] == 2 * channels
            assert not halved[:, channels:].any()

    def test_resnet20_learns_in_all_its_blocks(self):
        network = build("resnet20", CIFAR, 10, seed=1)
        nn.functional.cross_entropy(network(_inputs("resnet20", 4)), torch.arange(4)).backward()
        last = [m.conv2.weight.grad for m in network.modules() if hasattr(m, "conv2")]
        assert len(last) == 9
        assert all(gradient.abs().max() > 0 for gradient in last)


class TestCharLstm:
    def test_answers_depend_on_the_whole_sequence(self):
        network = build("char-lstm", (12,), 80, seed=1)
        x = torch.arange(24).reshape(2, 12)
        changed = x.clone()
        changed[0, 0] = 50
        before, after = network(x), network(changed)
        assert before.shape == (2, 80)
        assert not torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])

    def test_padding_is_part_of_the_alphabet(self):
        network = build("char-lstm", (5,), 2, seed=1)
        assert network(torch.full((1, 5), VOCABULARY_SIZE - 1)).isfinite().all()


class TestSeeds:
    @pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"centers", "trees"}))  # of zeros
    def test_the_seed_alone_decides(self, name):
        shape = INPUTS.get(name, CIFAR)
        torch.manual_seed(1)
        positions = POSITIONS.get(name, ())
        first = build(name, shape, 10, seed=7, positions=positions).state_dict()
        torch.manual_seed(2)
        second = build(name, shape, 10, seed=7, positions=positions).state_dict()
        other = build(name, shape, 10, seed=8, positions=positions).state_dict()
        assert all(torch.equal(first[key], second[key]) for key in first)
        drawn = [key for key in first if first[key].is_floating_point() and first[key].std(correction=0) > 0]
        assert drawn
        assert not any(torch.equal(first[key], other[key]) for key in drawn)

    @pytest.mark.parametrize("name", NETWORKS)
    def test_the_global_generator_is_untouched(self, name):
        before = torch.get_rng_state()
        build(name, INPUTS.get(name, CIFAR), 10, seed=7, positions=POSITIONS.get(name, ()))
        assert torch.equal(torch.get_rng_state(), before)


class TestFailure:
    def test_an_unknown_network_names_the_key_the_nearest_and_all(self):
        with pytest.raises(ConfigurationError) as caught:
            build("lenett", CIFAR, 10, seed=1)
        message = str(caught.value)
        assert message.startswith("model: 'lenett' is not a network; did you mean 'lenet'?")
        assert all(name in message for name in NETWORKS)

    @pytest.mark.parametrize(
        ("name", "shape", "needed"),
        [
            ("lenet", (1, 15, 28), "images of at least 16×16 pixels"),
            ("cnn64", (108,), "images of at least 16×16 pixels"),
            ("resnet18", (3, 32, 7), "images of at least 8×8 pixels"),
            ("resnet20", (80,), "images of at least 8×8 pixels"),
            ("char-lstm", CIFAR, "sequences of character codes"),
            ("word-lstm", CIFAR, "sequences of word vectors"),
        ],
    )
    def test_inputs_that_do_not_fit_are_refused_with_what_is_needed(self, name, shape, needed):
        with pytest.raises(ConfigurationError) as caught:
            build(name, shape, 10, seed=1)
        message = str(caught.value)
        assert message.startswith(f"model: '{name}' does not fit the data")
        assert needed in message
        assert str(shape) in message
