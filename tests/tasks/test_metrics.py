"""Metrics have the values that scikit-learn, and their definitions by hand, give."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.exchange.evaluation import summarise
from florilegium.tasks.choices import Choices
from florilegium.tasks.losses import IGNORED
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets, Task

G = torch.Generator().manual_seed(5)
NAMES = "accuracy,balanced-accuracy,f1,f1-micro,auroc,average-precision,brier,calibration-error,perplexity"


def _classes(classes: int = 4, n: int = 60) -> tuple[Task, Tensor, Tensor]:
    task = make_task("classification", Targets(("y",), classes), Choices(metrics=NAMES))
    return task, torch.randn(n, classes, generator=G, dtype=torch.float64), torch.randint(classes, (n,), generator=G)


def test_figures_of_classes_are_those_of_scikit_learn() -> None:
    task, outputs, y = _classes()
    p, best, found = outputs.softmax(dim=1), outputs.argmax(dim=1), task.measure(outputs, y)
    one_hot = np.eye(4)[y]
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, best))
    assert found["balanced-accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, best))
    assert found["f1"] == pytest.approx(sk.f1_score(y, best, average="macro"))
    assert found["f1-micro"] == pytest.approx(sk.f1_score(y, best, average="micro"))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert found["average-precision"] == pytest.approx(sk.average_precision_score(one_hot, p))
    assert found["brier"] == pytest.approx(((p.numpy() - one_hot) ** 2).sum(axis=1).mean())
    assert found["perplexity"] == pytest.approx(math.exp(sk.log_loss(y, p)))
    assert found["loss"] == pytest.approx(sk.log_loss(y, p))


def test_a_class_that_is_neither_there_nor_predicted_counts_for_nothing() -> None:
    task = _classes()[0]
    outputs = torch.tensor([[9.0, 0, 0, 0], [0, 9.0, 0, 0], [0, 9.0, 0, 0], [9.0, 0, 0, 0]])
    y = torch.tensor([0, 1, 1, 1])
    found = task.measure(outputs, y)
    assert found["f1"] == pytest.approx(sk.f1_score(y, outputs.argmax(dim=1), average="macro"))
    assert found["balanced-accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert math.isnan(task.measure(outputs[:1], y[:1])["auroc"])  # all of one class


def test_classes_without_examples_do_not_lower_a_figure() -> None:
    """A client that has three of four classes: the mean of the figures of these three, each by scikit-learn."""
    task, outputs, _ = _classes()
    y = torch.arange(len(outputs)) % 3
    p, found = outputs.softmax(dim=1), task.measure(outputs, y)
    assert found["auroc"] == pytest.approx(np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in range(3)]))
    each = [sk.average_precision_score(y == c, p[:, c]) for c in range(3)]
    assert found["average-precision"] == pytest.approx(np.mean(each))


@pytest.mark.parametrize("said", [-3.0, 3.0])
def test_a_constant_predictor_is_no_better_than_chance(said: float) -> None:
    task = make_task("binary", Targets(("y",), 2), Choices(metrics=NAMES))
    found = task.measure(torch.full((10, 1), said), torch.tensor([0] * 9 + [1]))
    assert (found["balanced-accuracy"], found["auroc"]) == pytest.approx((0.5, 0.5))
    assert found["average-precision"] == pytest.approx(0.1)


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5])
def test_r2_does_not_depend_on_the_targets_origin(mean: float) -> None:
    """Also pooled from two clients' sums; with 1e9, rounding leaves nothing of it, which is no number."""
    task = make_task("regression", Targets(("y",)))
    y = torch.randn(300, 1, generator=G, dtype=torch.float64) + mean
    outputs = y + 0.5 * torch.randn(300, 1, generator=G, dtype=torch.float64)
    right = sk.r2_score(y, outputs)
    assert task.measure(outputs, y)["r2"] == pytest.approx(right, abs=1e-4)
    told = [task.measure(outputs[rows], y[rows]) for rows in (slice(100), slice(100, 300))]
    metrics = {name: np.array([one[name] for one in told]) for name in task.reported}
    assert summarise(metrics, np.array([100.0, 200.0]), task)["r2_pooled"] == pytest.approx(right, abs=1e-4)
    assert math.isnan(task.measure(outputs + 1e9, y + 1e9)["r2"])


def test_figures_of_a_binary_task_are_those_of_its_positive_class() -> None:
    task = make_task("binary", Targets(("y",), 2), Choices(metrics=NAMES))
    outputs, y = torch.randn(80, 1, generator=G, dtype=torch.float64), torch.randint(2, (80,), generator=G)
    p, best, found = outputs[:, 0].sigmoid(), outputs[:, 0] > 0, task.measure(outputs, y)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, best))
    assert found["balanced-accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, best))
    assert found["f1"] == pytest.approx(sk.f1_score(y, best))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p))
    assert found["average-precision"] == pytest.approx(sk.average_precision_score(y, p))
    assert found["brier"] == pytest.approx(sk.brier_score_loss(y, p))
    assert found["loss"] == pytest.approx(sk.log_loss(y, p))


def test_figures_of_several_labels_are_those_of_scikit_learn() -> None:
    task = make_task("multi-label", Targets(("a", "b", "c")), Choices(metrics=NAMES.removesuffix(",perplexity")))
    outputs, y = torch.randn(70, 3, generator=G, dtype=torch.float64), torch.randint(2, (70, 3), generator=G).double()
    p, best, found = outputs.sigmoid(), (outputs > 0).long(), task.measure(outputs, y)
    assert found["accuracy"] == pytest.approx(1 - sk.hamming_loss(y, best))
    assert found["f1"] == pytest.approx(sk.f1_score(y, best, average="macro"))
    assert found["f1-micro"] == pytest.approx(sk.f1_score(y, best, average="micro"))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p))
    assert found["average-precision"] == pytest.approx(sk.average_precision_score(y, p))
    each = [sk.balanced_accuracy_score(y[:, label], best[:, label]) for label in range(3)]
    assert found["balanced-accuracy"] == pytest.approx(np.mean(each))


@pytest.mark.parametrize("binary", [False, True])
def test_calibration_error_is_the_weighted_gap_of_each_bin(binary: bool) -> None:
    if binary:
        task = make_task("binary", Targets(("y",), 2), Choices(metrics="calibration-error"))
        outputs, y = 3 * torch.randn(200, 1, generator=G).double(), torch.randint(2, (200,), generator=G)
        positive = outputs[:, 0].sigmoid().numpy()
        confidence, right = np.maximum(positive, 1 - positive), (positive > 0.5) == y.numpy()
    else:
        task, outputs, y = _classes(n=200)
        p = outputs.softmax(dim=1).numpy()
        confidence, right = p.max(axis=1), p.argmax(axis=1) == y.numpy()
    expected = 0.0
    for place in range(15):
        inside = (confidence > place / 15) & (confidence <= (place + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert task.measure(outputs, y)["calibration-error"] == pytest.approx(expected)


def test_c_index_is_the_share_of_comparable_pairs() -> None:
    task = make_task("survival", Targets(("time", "event")))
    risks = torch.randint(5, (40, 1), generator=G).double()
    y = torch.stack([1 + torch.randint(8, (40,), generator=G), torch.randint(2, (40,), generator=G)], dim=1).double()
    good = all_pairs = 0.0
    for i, j in permutations(range(40), 2):  # i has the earlier event
        (ti, ei), (tj, ej) = y[i].tolist(), y[j].tolist()
        if ei and (ti < tj or (ti == tj and not ej)):
            all_pairs += 1
            good += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
    found = task.measure(risks, y)
    assert found["c-index"] == pytest.approx(good / all_pairs)
    assert found["comparable"] * 40 == pytest.approx(all_pairs)
    censored = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert math.isnan(task.measure(torch.zeros(2, 1), censored)["c-index"])


def test_dice_and_iou_are_those_of_all_pixels_that_count() -> None:
    task = make_task("segmentation", Targets(("mask",), 3, (), (5, 6)))
    outputs, y = torch.randn(4, 3, 5, 6, generator=G), torch.randint(3, (4, 5, 6), generator=G)
    y[0, 0] = IGNORED
    counts = (y != IGNORED).flatten()
    best, true = outputs.argmax(dim=1).flatten()[counts], y.flatten()[counts]
    found = task.measure(outputs, y)
    assert found["dice"] == pytest.approx(sk.f1_score(true, best, average="macro"))
    assert found["iou"] == pytest.approx(sk.jaccard_score(true, best, average="macro"))


def mean_gap(predictions: np.ndarray, targets: np.ndarray) -> float:
    """A metric of a user's own."""
    return float(np.abs(predictions - targets).mean())


mean_gap.higher = False  # type: ignore[attr-defined]


def test_a_function_is_a_metric() -> None:
    task = make_task("regression", Targets(("y",)), Choices(metrics=f"{__name__}:mean_gap,rmse"))
    outputs, y = torch.zeros(4, 1), torch.tensor([[1.0], [1.0], [3.0], [3.0]])
    assert task.measure(outputs, y)["mean-gap"] == pytest.approx(2.0)
    assert (task.main, task.figures[task.main].higher, task.averaged) == ("mean-gap", False, {"mean-gap"})


@pytest.mark.parametrize(
    ("task", "choices", "said"),
    [
        (
            "classification",
            Choices(metrics="rmse"),
            "^metrics: 'rmse' is not one of a task that predicts one",
        ),
        ("classification", Choices(metrics="acuracy"), "did you mean 'accuracy'"),
        ("classification", Choices(metrics="f1,f1"), "names one figure twice"),
        ("classification", Choices(loss="huber"), "^loss: 'huber' is not one of a task"),
        ("classification", Choices(positive="1"), "only task = 'binary' has positive classes"),
        ("binary", Choices(), "binary needs two classes, and the data have 3"),
        ("binary", Choices(positive="7"), "there is no class '7'"),
        ("binary", Choices(positive="0,1,2"), "none is left to be negative"),
        ("multi-label", Choices(), "multi-label needs two or more columns"),
        ("survival", Choices(), "survival needs two columns"),
        ("segmentation", Choices(), "needs a class for each position"),
        ("classification", Choices(class_weights="1,2"), "nor 3 numbers of at least 0"),
        ("classification", Choices(class_weights="1,-2,1"), "nor 3 numbers of at least 0"),
        ("classification", Choices(class_weights="0,0,0"), "not all 0"),
        ("classification", Choices(class_weights="1,nan,1"), "nor 3 numbers"),
    ],
)
def test_what_a_task_does_not_have(task: str, choices: Choices, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_task(task, Targets(("y",), 3), choices)
