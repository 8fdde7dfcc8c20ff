"""Losses have the values of their definitions, of PyTorch's and torchvision's own, and of the partial likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch.nn.functional import cross_entropy, huber_loss
from torchvision.ops import sigmoid_focal_loss

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.tasks.choices import Choices
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets
from florilegium.tasks.weights import class_weights

G = torch.Generator().manual_seed(3)
OUTPUTS, Y = torch.randn(12, 4, generator=G, dtype=torch.float64), torch.randint(4, (12,), generator=G)
CLASSES, TIMES = Targets(("y",), 4), Targets(("time", "event"))


def test_focal_loss_is_that_of_its_definition_and_of_torchvision() -> None:
    task = make_task("classification", CLASSES, Choices(loss="focal", focal_gamma=1.5))
    p = OUTPUTS.softmax(dim=1)[torch.arange(12), Y]
    torch.testing.assert_close(task.losses(OUTPUTS, Y), -((1 - p) ** 1.5) * p.log())
    binary = make_task("binary", Targets(("y",), 2), Choices(loss="focal"))
    expected = sigmoid_focal_loss(OUTPUTS[:, 0], (Y > 1).double(), alpha=-1, gamma=2)
    torch.testing.assert_close(binary.losses(OUTPUTS[:, :1], (Y > 1).long()), expected)
    plain = make_task("classification", CLASSES, Choices(loss="focal", focal_gamma=0.0))
    torch.testing.assert_close(plain.losses(OUTPUTS, Y), cross_entropy(OUTPUTS, Y, reduction="none"))


def test_label_smoothing_mixes_with_the_uniform_distribution() -> None:
    task = make_task("classification", CLASSES, Choices(loss="label-smoothing", label_smoothing=0.2))
    log_p = OUTPUTS.log_softmax(dim=1)
    expected = -0.8 * log_p[torch.arange(12), Y] - 0.2 * log_p.mean(dim=1)
    torch.testing.assert_close(task.losses(OUTPUTS, Y), expected)


def test_huber_is_pytorchs() -> None:
    task = make_task("regression", Targets(("a",)), Choices(loss="huber"))
    y = torch.randn(12, 1, generator=G, dtype=torch.float64) * 3
    torch.testing.assert_close(task.loss(OUTPUTS[:, :1], y), huber_loss(OUTPUTS[:, :1], y))


def scaled(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss of a user's own."""
    return 3 * cross_entropy(outputs, y, reduction="none")


def total(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A function that returns one number where one for each example is needed."""
    return scaled(outputs, y).sum()


def test_a_function_is_a_loss() -> None:
    task = make_task("classification", CLASSES, Choices(loss=f"{__name__}:scaled"))
    torch.testing.assert_close(task.loss(OUTPUTS, Y), 3 * cross_entropy(OUTPUTS, Y))
    with pytest.raises(ConfigurationError, match="returned losses of shape"):
        make_task("classification", CLASSES, Choices(loss=f"{__name__}:total")).loss(OUTPUTS, Y)


@pytest.mark.parametrize("loss", ["cox", "cox-in-order"])
def test_the_partial_likelihood_of_a_batch(loss: str) -> None:
    task = make_task("survival", TIMES, Choices(loss=loss))
    times, events = [5.0, 3.0, 3.0, 8.0, 1.0, 3.0], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    s = OUTPUTS[:6, 0]
    order = sorted(range(6), key=lambda i: -times[i])
    expected = 0.0
    for i in range(6):
        earlier = [j for j in order if order.index(j) <= order.index(i)]
        at_risk = [j for j in range(6) if times[j] >= times[i]] if loss == "cox" else earlier
        expected += events[i] * (math.log(sum(math.exp(s[j]) for j in at_risk)) - float(s[i])) / 6
    y = torch.tensor([times, events], dtype=torch.float64).T
    assert float(task.loss(s[:, None], y)) == pytest.approx(expected)
    assert float(task.loss(s[:, None], y * torch.tensor([1.0, 0.0]))) == 0.0
    shifted = task.loss(s[:, None] + 700, y)  # only differences of scores count, and large ones do not overflow
    assert float(shifted) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0.0, 1.0], "times above 0, and column 'time' has 0"),
        ([2.0, 2.0], "events of 0 or 1, and column 'event' has 2"),
    ],
)
def test_what_is_no_time_or_event(row: list[float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        make_task("survival", TIMES).encode(np.array([[1.0, 1.0], row], np.float32))


def test_positive_classes_are_named_in_the_words_of_the_data() -> None:
    task = make_task("binary", Targets(("y",), 3, ("no", "mild", "severe")), Choices(positive="mild, severe"))
    assert task.encode(np.array([0, 1, 2, 0])).tolist() == [0, 1, 1, 0]
    found = task.predictions(np.array([[0.2], [0.9]]))
    assert found == {"class": ["no", "positive"], "probability": [0.2, 0.9]}


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    task = make_task("classification", CLASSES, Choices(class_weights="balanced"))
    y = np.array([0, 0, 0, 1, 3, 3])
    np.testing.assert_allclose(class_weights(task, y, None), compute_sample_weight("balanced", y), rtol=1e-6)
    federation = make_task("classification", CLASSES, Choices(class_weights="balanced-federation"))
    found = class_weights(federation, y, np.array([30, 20, 10, 40]))
    np.testing.assert_allclose(found, [100 / 120] * 3 + [100 / 80] + [100 / 160] * 2, rtol=1e-6)
    given = make_task("classification", CLASSES, Choices(class_weights="1, 2, 0, 0.5"))
    assert class_weights(given, y, None).tolist() == [1, 1, 1, 2, 0.5, 0.5]
    one_class = class_weights(task, np.zeros(4, np.int64), None)
    assert one_class.tolist() == [1, 1, 1, 1]
