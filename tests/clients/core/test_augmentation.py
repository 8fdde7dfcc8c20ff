"""Tests of clients.core.augmentation: crops and mirrors found by search, transforms, and training with them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from florilegium.apps.assembly.parts import assemble
from florilegium.clients.core.augmentation import PADDING, augmentation_of
from florilegium.clients.core.stacked_training import Training
from florilegium.clients.core.training import batches, features, fixed_features, mapped, train
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.datasets import DATASETS
from tests.support import TASK, config, make_client, perform, settings

SPEC = DATASETS["cifar10"]
BLACK = (-torch.tensor(SPEC.mean) / torch.tensor(SPEC.std)).view(-1, 1, 1)


def _images(count: int, size: int = 6) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(3))


def _examples(count: int = 7) -> Examples:
    return Examples(_images(count), torch.arange(count) % 3)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def _change():
    return augmentation_of("crop-flip", SPEC)


def _network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 5), nn.Linear(5, 3))


def _found(image: torch.Tensor, changed: torch.Tensor) -> tuple[int, int, bool]:
    """Return the crop of the black-framed image, and the mirroring, that give ``changed``."""
    framed = pad(image - BLACK, [PADDING] * 4) + BLACK
    size = image.shape[-1]
    for down, right, mirrored in itertools.product(range(9), range(9), (False, True)):
        whole = framed.flip(-1) if mirrored else framed
        if torch.allclose(whole[:, down : down + size, right : right + size], changed, atol=1e-6):
            return down, right, mirrored
    raise AssertionError("no crop of the image")


def test_every_image_has_a_crop_and_a_mirroring_of_its_own_and_all_occur():
    x = _images(600)
    found = [_found(image, changed) for image, changed in zip(x, _change()(x, 1, 0), strict=True)]
    for places in zip(*found, strict=True):
        values, counts = np.unique(places, return_counts=True)
        expected = 600 / len(values)
        assert len(values) in (2, 9)
        assert np.abs(counts - expected).max() < 4 * np.sqrt(expected)


def test_draws_depend_on_seed_and_epoch_alone():
    x, change = _images(20), _change()
    torch.manual_seed(0)
    first = change(x, 1, 0)
    torch.rand(3)
    assert torch.equal(change(x, 1, 0), first)
    assert not torch.equal(change(x, 2, 0), first)
    assert not torch.equal(change(x, 1, 1), first)


def test_transforms_of_torchvision_see_pixels_from_0_to_1():
    x = (_images(4, 32) - 0.5) / 0.25
    mirrored = augmentation_of("RandomHorizontalFlip(p=1)", SPEC)
    torch.testing.assert_close(mirrored(x, 1, 0), x.flip(-1))
    inverted = augmentation_of("RandomHorizontalFlip(p=0)+RandomInvert(p=1)", SPEC)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (SPEC.mean, SPEC.std))
    torch.testing.assert_close(inverted(x, 1, 0), (1 - 2 * mean - x * std) / std)
    turned = augmentation_of("RandomRotation(degrees=90)", SPEC)
    assert torch.equal(turned(x, 1, 0), turned(x, 1, 0))
    assert not torch.equal(turned(x, 1, 0), turned(x, 1, 1))


def test_training_sees_the_images_of_each_epoch_and_leaves_them_as_they_were():
    plain, change, chosen = _examples(), _change(), settings(batch_size=3, local_epochs=3, learning_rate=0.1)
    examples, model, expected = plain.redrawn(change), _network(), _network()
    train(model, examples, chosen, _generator(), task=TASK)
    assert torch.equal(examples.x, plain.x)
    generator, sgd = _generator(), torch.optim.SGD(expected.parameters(), lr=0.1)
    for epoch in range(3):
        x = change(plain.x, 8, epoch)
        for rows in batches(plain, 3, generator):
            sgd.zero_grad()
            cross_entropy(expected(x[rows]), plain.y[rows]).backward()
            sgd.step()
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_images_are_unchanged_after_a_training_that_fails():
    def fail(rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("here")

    examples = _examples().redrawn(_change())
    with pytest.raises(RuntimeError, match="here"):
        train(_network(), examples, settings(), _generator(), objective=fail, task=TASK)
    assert torch.equal(examples.x, _examples().x)


def test_frozen_bodies_are_computed_anew_for_every_epoch():
    """A head trained on a body's features is the head of the whole network with the body frozen."""
    chosen = settings(batch_size=3, local_epochs=2, learning_rate=0.1)
    whole, cut = _network(), _network()
    for parameter in whole[:2].parameters():
        parameter.requires_grad_(False)
    train(whole, _examples().redrawn(_change()), chosen, _generator(), task=TASK)
    train(cut[2:], mapped(cut[:2], _examples().redrawn(_change())), chosen, _generator(), task=TASK)
    torch.testing.assert_close(cut[2].weight, whole[2].weight)
    still = _network()
    train(still[2:], Examples(features(still[:2], _examples()), _examples().y), chosen, _generator(), task=TASK)
    assert not torch.allclose(still[2].weight, whole[2].weight)


def test_features_of_a_network_as_it_was_are_those_of_the_images_as_they_are():
    network, plain = _network(), _examples()
    rows, changed = torch.tensor([4, 0, 2]), _examples().redrawn(_change())
    with torch.no_grad():
        before = network.eval()(plain.x[rows])
        once, anew = fixed_features(network, plain), fixed_features(network, changed)
        for parameter in network.parameters():
            parameter.add_(1.0)
        torch.testing.assert_close(once(rows), before)
        torch.testing.assert_close(anew(rows), before)
        changed.x.copy_(plain.x.flip(0))
        torch.testing.assert_close(anew(rows), _network().eval()(plain.x.flip(0)[rows]))


def test_moon_compares_features_of_the_same_changed_images(tmp_path):
    """With a change that changes nothing it trains as without; with another it does not."""
    trained = {}
    same = _examples().redrawn(lambda x, seed, epoch: x)
    for name, examples in (("plain", _examples()), ("same", same), ("changed", _examples().redrawn(_change()))):
        keys = {"method": "moon", "dataset": "cifar10", "model": "lenet", "moon.mu": 5.0, "learning-rate": 0.1}
        client = make_client(examples, _network(), folder=tmp_path / name, **keys)
        first = perform(client, "train", get_arrays(client.model)).arrays
        trained[name] = perform(client, "train", {n: a + 0.01 for n, a in first.items()}).arrays["1.weight"]
    np.testing.assert_allclose(trained["same"], trained["plain"], rtol=1e-4, atol=1e-6)
    assert not np.allclose(trained["changed"], trained["plain"], rtol=1e-4, atol=1e-6)


def test_chosen_rows_change_as_they_do_among_all():
    examples, chosen = _examples().redrawn(_change()), torch.tensor([5, 1])
    assert torch.equal(examples.rows(chosen).redraw(4, 2), examples.redraw(4, 2)[chosen])


def test_clients_with_changing_images_are_not_trained_together():
    chosen = settings()
    assert Training.of(_network(), _examples(), chosen, _generator(), task=TASK) is not None
    assert Training.of(_network(), _examples().redrawn(_change()), chosen, _generator(), task=TASK) is None


@pytest.mark.parametrize("method", ["fedavg", "per-fedavg"])
def test_hooks_that_read_the_examples_see_the_same_images(method):
    """Per-FedAvg's hook reads the client's examples: with another order of epochs it would see them unchanged."""
    seen = []
    client = make_client(_examples().redrawn(_change()), _network(), method=method, dataset="cifar10", model="lenet")
    hook = client.gradient_hook()
    client.phase = "train"

    def watched(model, rows):
        seen.append(client.data.train.x.clone())
        return hook and hook(model, rows)

    client.descend(epochs=2, gradient_hook=watched)
    assert not any(torch.equal(x, _examples().x) for x in seen)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"augment": "crop-flip", "dataset": "shakespeare"}, "changes images, but 'shakespeare' has none"),
        ({"augment": "RandomFlip"}, "'RandomFlip' is neither 'none', 'crop-flip' nor a transform"),
        ({"augment": "Lambda"}, "augment: Lambda: .*missing"),
        ({"augment": "RandomRotation(angle=3)"}, "augment: RandomRotation: .*angle"),
        ({"augment": "Resize(size=3)"}, r"makes images of shape \(1, 3, 3\)"),
        ({"augment": "JPEG(quality=50)"}, "fails on images of shape"),
        ({"augment": "crop-flip", "method": "fedl2p", "finetune-epochs": 1}, "method 'fedl2p' needs them unchanged"),
        ({"augment": "crop flip"}, "augment: .*'crop flip' is not a name"),
    ],
)
def test_what_cannot_be_is_said_before_the_run(keys, words):
    with pytest.raises(ConfigurationError, match=words):
        assemble(config(**keys), one_thread=True)
