"""Tests of models.adapt: modules of other packages as sequences of blocks, and what is refused."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models import zoo
from florilegium.models.adapt import adapt
from florilegium.models.blocks import OneBlock, block_names, body_and_classifier, cut, last_blocks
from florilegium.models.networks import build, find_network
from florilegium.models.parameters import exchanged, get_arrays
from tests.models import foreign

SHAPE, CLASSES = (1, 8, 8), 10
X = torch.randn(5, 8, 8, 1, generator=torch_generator(0, "images")).permute(0, 3, 1, 2)


def name_of(function: str) -> str:
    return f"tests.models.foreign:{function}"


@pytest.mark.parametrize(
    ("function", "children"),
    [
        ("FlattenNet", ["conv", "norm", "relu", "flatten", "hidden", "drop", "fc"]),
        ("Stated", ["encoder", "head"]),
        ("lazy", ["0", "1", "2", "3"]),
        ("frozen_body", ["0", "1", "2", "3"]),
        ("dense", ["0", "1"]),
        ("ViewNet", ["layout", "model"]),
        ("DropoutNet", ["model"]),
        ("Residual", ["model"]),
        ("Tied", ["model"]),
        ("Attention", ["model"]),
    ],
)
def test_children_and_outputs(function: str, children: list[str]) -> None:
    network = build(name_of(function), SHAPE, CLASSES, 3)
    assert list(network._modules) == children
    assert isinstance(network, OneBlock) == ("model" in children)
    with torch_draws(3, "model", name_of(function)):
        own = getattr(foreign, function)(SHAPE, CLASSES)
        if function == "lazy":
            own(torch.zeros(1, *SHAPE))
    prefix = "model." if "model" in children else ""
    arrays, expected = get_arrays(network), {prefix + name: tensor for name, tensor in exchanged(own).items()}
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name])
    for mode in (False, True):
        with torch_draws(1, "layers"):
            outputs = own.train(mode)(X.clone(memory_format=torch.contiguous_format))
        with torch_draws(1, "layers"):
            torch.testing.assert_close(network.train(mode)(X), outputs, rtol=1e-5, atol=1e-6)


def test_why_a_module_is_one_block() -> None:
    assert build(name_of("Tied"), SHAPE, CLASSES, 1).why == "'scale' belongs to none of its blocks"
    tied = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
    tied[2].weight = tied[1].weight
    network = adapt(tied, SHAPE, CLASSES)
    assert isinstance(network, OneBlock)
    assert network.why == "'1.weight' belongs to several of its blocks"


@pytest.mark.parametrize(
    "between",
    [Tensor.detach, partial(torch.clamp, min=-60, max=60), lambda x: 2 * x - x.detach()],
    ids=["detach", "clamp", "gradient"],
)
def test_children_with_something_between_them_are_one_block(between) -> None:
    class Between(nn.Sequential):
        def forward(self, x):
            return self[2](between(self[1](self[0](x))))

    with torch_draws(0, "between"):
        network = adapt(Between(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, CLASSES)), SHAPE, CLASSES)
    assert isinstance(network, OneBlock)
    assert network.why == "its children one after the other do not give its own outputs and gradients"


def test_a_dry_run_leaves_no_trace() -> None:
    state = torch.get_rng_state()
    module = foreign.FlattenNet(SHAPE, CLASSES)
    torch.set_rng_state(state)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    adapt(module, SHAPE, CLASSES)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert module.norm.num_batches_tracked == 0


def test_codes() -> None:
    shape = (7,)
    network = build(name_of("codes"), shape, 4, 1, codes=VOCABULARY_SIZE)
    assert block_names(get_arrays(network)) == ["0", "2"]
    with pytest.raises(ConfigurationError, match=r"model: '.*:codes' fails in evaluation mode on inputs .*float32"):
        build(name_of("codes"), shape, 4, 1)


def _computes(function):
    return partial(foreign.Computes, function)


def _raises(shape, classes):
    raise KeyError("width")


WRONG = {
    "arity": (lambda shape: None, r"cannot be called with two arguments, the input shape \(1, 8, 8\)"),
    "raises": (_raises, r"cannot be built for inputs of shape \(1, 8, 8\) and 10 classes: KeyError: 'width'"),
    "no module": (lambda shape, classes: [1, 2], r"returns list \(found: \[1, 2\]\), expected a torch.nn.Module"),
    "outputs": (lambda shape, classes: foreign.dense(shape, 9), r"returns a tensor \(3, 9\) .* a tensor \(3, 10\)"),
    "tuple": (_computes(lambda x: (x, x)), r"returns tuple in evaluation mode"),
    "integers": (_computes(lambda x: x.long()), r"returns a tensor \(3, 10\) torch.int64"),
    "nan": (_computes(lambda x: x / 0), "returns NaN or infinity"),
    "detached": (_computes(lambda x: x.detach()), "do not depend on its trained parameters"),
    "nothing": (lambda shape, classes: nn.Flatten(), "has no parameters to train"),
    "frozen": (lambda *of: foreign.dense(*of).requires_grad_(False), "has only frozen parameters"),
    "double": (lambda *of: foreign.dense(*of, dtype=torch.float64), r"has '1.weight' in torch.float64.*call"),
    "half": (lambda *of: foreign.dense(*of, dtype=torch.bfloat16), r"has '1.weight' in torch.bfloat16"),
    "complex": (lambda *of: foreign.dense(*of, dtype=torch.complex64), "complex numbers are not supported"),
    "size": (lambda shape, classes: nn.Sequential(nn.Conv2d(1, 2, 9)), "fails in evaluation mode.*Kernel size"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, message = WRONG[kind]
    name = name_of(f"wrong_{kind}")
    monkeypatch.setattr(foreign, f"wrong_{kind}", builder, raising=False)
    with pytest.raises(ConfigurationError, match=f"(?s)^model: '{name}' .*{message}"):
        build(name, SHAPE, CLASSES, 1)


def test_blocks_that_are_none() -> None:
    module = foreign.Stated(SHAPE, CLASSES)
    module.blocks = ("encoder", "heads")
    with pytest.raises(ValueError, match=r"states blocks = \['encoder', 'heads'\], but it has no child 'heads'"):
        adapt(module, SHAPE, CLASSES)
    module.blocks = ("encoder",)
    with pytest.raises(ValueError, match=r"not a sequence of them: 'head.weight' belongs to none"):
        adapt(module, SHAPE, CLASSES)
    residual = foreign.Residual(SHAPE, CLASSES)
    residual.blocks = ("flat", "first", "branch", "head")
    with pytest.raises(ValueError, match="do not give its own outputs and gradients"):
        adapt(residual, SHAPE, CLASSES)


def test_children_without_arrays_belong_to_the_block_before() -> None:
    relu = nn.ReLU()
    children = {
        "a": nn.Linear(4, 4),
        "r": relu,
        "b": nn.Linear(4, 4),
        "s": relu,
        "c": nn.Linear(4, 2),
        "i": nn.Identity(),
    }
    network = nn.Sequential(OrderedDict(children))
    assert last_blocks(get_arrays(network), 1, "key") == {"c"}
    for head, split in ((["c"], 4), (["b", "c"], 2), ([], 6)):
        body, end = cut(network, head)
        assert [*body._modules, *end._modules] == list(children)
        assert len(body._modules) == split
    body, classifier = body_and_classifier(network)
    x = torch.randn(3, 4, generator=torch_generator(0, "x"))
    assert torch.equal(classifier(body(x)), network(x))
    with pytest.raises(ValueError, match="are not the last ones"):
        cut(network, ["b"])


@pytest.mark.parametrize(
    ("name", "shape", "first", "last"),
    [
        ("torchvision:resnet18", (3, 32, 32), "conv1", "fc"),
        ("torchvision:mobilenet_v3_small", (3, 32, 32), "features", "classifier"),
        ("timm:vit_tiny_patch16_224", (2, 32, 32), "model", "model"),
        ("timm:resnet10t", (1, 32, 32), "conv1", "fc"),
    ],
)
def test_networks_of_torchvision_and_timm(name: str, shape: tuple[int, ...], first: str, last: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    network = build(name, shape, 7, 1)
    blocks = block_names(get_arrays(network))
    assert (blocks[0], blocks[-1]) == (first, last)
    assert network.eval()(torch.zeros(1, *shape)).shape == (1, 7)


def test_names_that_torchvision_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"model: 'torchvision:resnet19' is no network.*did you mean 'resnet1"):
        build("torchvision:resnet19", (3, 32, 32), 10, 1)
    with pytest.raises(ConfigurationError, match=r"'torchvision:resnet18' .* takes images of 3 channels, not of 1"):
        build("torchvision:resnet18", SHAPE, 10, 1)
    with pytest.raises(ConfigurationError, match="takes images"):
        build("torchvision:resnet18", (5,), 10, 1)
    monkeypatch.setattr(zoo, "find_spec", lambda package: None)
    with pytest.raises(ConfigurationError, match=r"needs the package timm: pip install timm"):
        find_network("timm:resnet18")
