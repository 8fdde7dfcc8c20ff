"""What every task promises: derivatives, pooled figures, ranges, predictions, and no PyTorch before it is needed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor

from florilegium.clients.core.reports import Range, measured, range_of, validation
from florilegium.common.errors import ConfigurationError
from florilegium.strategies.exchange.evaluation import summarise
from florilegium.strategies.exchange.totals import Totals
from florilegium.tasks.choices import Choices
from florilegium.tasks.losses import IGNORED, LOG_RATE
from florilegium.tasks.metric import MANY, ONE, TIMES
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import NEEDS, Targets, Task
from tests.processes import ROOT


def _survival(n: int, g: torch.Generator) -> Tensor:
    """Times with ties, and events."""
    return torch.stack([1 + torch.randint(9, (n,), generator=g), torch.randint(2, (n,), generator=g)], dim=1).float()


def _positions(n: int, g: torch.Generator) -> Tensor:
    """Classes of six positions, some of which do not count."""
    y = torch.randint(4, (n, 6), generator=g)
    return torch.where(torch.rand(n, 6, generator=g) < 0.2, IGNORED, y)


EVERY = Choices(metrics="accuracy,balanced-accuracy,f1,f1-micro,auroc,average-precision,brier,calibration-error")
CASES: dict[str, tuple[Task, Callable[[int, torch.Generator], Tensor]]] = {
    "classes": (
        make_task("classification", Targets(("label",), 4)),
        lambda n, g: torch.randint(4, (n,), generator=g),
    ),
    "classes, every figure": (
        make_task("classification", Targets(("label",), 4), replace(EVERY, loss="focal")),
        lambda n, g: torch.randint(4, (n,), generator=g),
    ),
    "binary": (
        make_task("binary", Targets(("label",), 2)),
        lambda n, g: torch.randint(2, (n,), generator=g),
    ),
    "binary, every figure": (
        make_task("binary", Targets(("label",), 2), replace(EVERY, loss="label-smoothing")),
        lambda n, g: torch.randint(2, (n,), generator=g),
    ),
    "labels": (
        make_task("multi-label", Targets(("a", "b", "c")), EVERY),
        lambda n, g: torch.randint(2, (n, 3), generator=g).float(),
    ),
    "counts": (
        make_task("counts", Targets(("a", "b"))),
        lambda n, g: torch.randint(5, (n, 2), generator=g).float(),
    ),
    "times": (make_task("survival", Targets(("time", "event"))), _survival),
    "positions": (
        make_task("sequence-labels", Targets(("y",), 4, (), (6,)), Choices(metrics="accuracy,f1,perplexity,iou")),
        _positions,
    ),
    "numbers, scaled": (
        make_task(
            "regression",
            Targets(("a", "b")),
            Choices(target_scale="standard", scales=((3.0, 2.0), (-1.0, 5.0))),
        ),
        lambda n, g: torch.tensor([3.0, -1.0]) + torch.tensor([2.0, 5.0]) * torch.randn(n, 2, generator=g),
    ),
    "numbers, huber": (
        make_task("regression", Targets(("a", "b")), Choices(loss="huber", metrics="mae,rmse,r2")),
        lambda n, g: torch.randn(n, 2, generator=g),
    ),
    "a number": (
        make_task("regression", Targets(("y",))),
        lambda n, g: 3 + 2 * torch.randn(n, 1, generator=g),
    ),
    "numbers": (
        make_task("regression", Targets(("a", "b", "c"))),
        lambda n, g: torch.tensor([0.0, 5.0, -2.0]) + torch.randn(n, 3, generator=g),
    ),
}
"""Tasks, with functions that draw n targets."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Task, Callable[[int, torch.Generator], Tensor]]:
    return CASES[request.param]


def _draw(case: tuple[Task, Callable[[int, torch.Generator], Tensor]], n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    task, targets = case
    generator = torch.Generator().manual_seed(seed)
    y = targets(n, generator)
    return torch.randn(n, *task.outputs, generator=generator, dtype=torch.float64), y


def test_losses_have_the_derivative_that_finite_differences_have(case) -> None:
    outputs, y = _draw(case, 5)
    y = y.double() if y.is_floating_point() else y
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    outputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda o: case[0].loss(o, y), outputs)
    if not case[0].per_example:
        return
    assert torch.autograd.gradcheck(lambda o: case[0].losses(o, y), outputs)
    losses = case[0].losses(outputs, y)
    assert losses.shape == (5,)
    assert float(losses.detach().min()) >= case[0].least_loss
    torch.testing.assert_close(case[0].loss(outputs, y), losses.mean())
    torch.testing.assert_close(case[0].loss(outputs, y, weights), (weights * losses).mean())
    torch.testing.assert_close(case[0].total(outputs, y), losses.sum())


def test_figures_of_clients_pool_to_those_of_all_examples(case) -> None:
    task, sizes = case[0], [3, 17, 40]
    parts = [_draw(case, n, seed) for seed, n in enumerate(sizes)]
    told = [task.measure(*part) for part in parts]
    metrics = {name: np.array([one[name] for one in told]) for name in task.reported}
    whole = task.measure(torch.cat([o for o, _ in parts]), torch.cat([y for _, y in parts]))
    figures = summarise(metrics, np.array(sizes, float), task)
    expected = {
        f"{name}_{figure.pooled}": whole[name] for name, figure in task.figures.items()
        if name not in task.averaged and name != "c-index"  # pooled, it is that of pairs within clients
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    weighed = {name: (3.0, values.sum(), (values**2).sum(), (values * sizes).sum()) for name, values in metrics.items()}
    found = Totals(3, 60.0, 60.0, False, weighed, 0.0, 0.0).figures(task)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert found["std"] == pytest.approx(figures["std"])


def test_figures_are_those_of_scikit_learn() -> None:
    outputs, y = _draw(CASES["classes"], 50)
    found = CASES["classes"][0].measure(outputs, y)
    assert found["accuracy"] == pytest.approx(accuracy_score(y, outputs.argmax(dim=1)))
    for name in ("a number", "numbers"):
        outputs, y = _draw(CASES[name], 50)
        found = CASES[name][0].measure(outputs, y)
        assert found["loss"] == pytest.approx(float((outputs - y).square().mean()))
        assert found["rmse"] == pytest.approx(math.sqrt(found["loss"]))
        assert found["mae"] == pytest.approx(mean_absolute_error(y, outputs))
        assert found["r2"] == pytest.approx(r2_score(y, outputs, multioutput="variance_weighted"), abs=1e-6)
    outputs, y = _draw(CASES["a number"], 50)
    assert CASES["a number"][0].measure(outputs, y)["rmse"] == pytest.approx(root_mean_squared_error(y, outputs))


def test_what_is_measured_is_what_the_server_believes(case) -> None:
    task = case[0]
    known = {**measured(task), **dict.fromkeys(task.sums, Range(-1e15, 1e15))}
    for name, value in task.measure(*_draw(case, 20)).items():
        assert value in range_of(name, known)
    for name, allowed in validation(task).items():
        assert name.startswith("validation_")
        assert (allowed.low >= 0) == (name not in ("validation_r2",))
    assert [*task.measure(*_draw(case, 20))] == [*task.reported]
    assert all(math.isnan(value) for value in task.measure(*_draw(case, 0)).values())


def test_constant_predictions(case) -> None:
    task, (_, y) = case[0], _draw(case, 200)
    if task.predicts == ONE:
        best = torch.zeros(200, *task.outputs)
        often = int(y[y != IGNORED].mode().values)
        best[:, often if task.outputs != (1,) else 0] = 1 if task.outputs != (1,) else often - 0.5
    elif task.predicts == MANY:
        best = (y.mean(dim=0).round() - 0.5).expand(200, -1)
        if task.main == "f1":
            return
    elif task.predicts == TIMES:
        best = torch.zeros(200, 1)
    elif task.main == "mae":
        return
    else:
        best = y.double().mean(dim=0).expand(200, -1)
        if task.choices.scales:
            mean, std = torch.tensor(task.choices.scales, dtype=torch.float64).unbind(1)
            best = (best - mean) / std
        best = best.log() if task.form == LOG_RATE else best
    assert task.constant(y.numpy()) == pytest.approx(task.measure(best, y)[task.main])
    assert math.isnan(task.constant(y[:0].numpy()))


def test_predictions_have_a_row_for_each_input(case) -> None:
    task, (outputs, _) = case[0], _draw(case, 6)
    for name, column in task.predictions(task.activate(outputs).numpy()).items():
        assert len(column) == 6, name


def test_strata_are_classes_or_none(case) -> None:
    task, (_, y) = case[0], _draw(case, 6)
    strata = task.strata(y.numpy())
    known = {"classification": 4, "binary": 2, "survival": 2}
    assert task.num_strata == known.get(type(task).__name__.lower(), 0)
    of = y[:, 1].long() if task.predicts == TIMES else y
    assert strata.tolist() == (of.tolist() if task.num_strata else [0] * 6)


def test_capabilities_are_known(case) -> None:
    assert case[0].provides <= NEEDS.keys()


def test_r2_of_equal_targets_is_undefined() -> None:
    task = CASES["a number"][0]
    found = task.measure(torch.zeros(4, 1), torch.full((4, 1), 0.1))
    assert math.isnan(found["r2"])
    assert found["rmse"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [("regresion", "did you mean 'regression'"), ("tests.tasks.test_contract:CASES", "expected a subclass of")],
)
def test_what_is_no_task(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_task(name, Targets())


def test_regression_without_targets_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="regression needs a column of targets"):
        make_task("regression", Targets())


def test_declarations_are_read_without_pytorch() -> None:
    code = (
        "import sys\nfrom florilegium.tasks.registry import TASKS, make_task\n"
        "from florilegium.tasks.task import Targets\n"
        "targets = {'classification': Targets(('y',), 3), 'binary': Targets(('y',), 2),\n"
        "           'segmentation': Targets(('y',), 3, (), (4, 4)), 'sequence-labels': Targets(('y',), 3, (), (4,)),\n"
        "           'next-token': Targets((), 0, (), (), (8,), 20)}\n"
        "for name in TASKS.own:\n"
        "    task = make_task(name, targets.get(name, Targets(('t', 'e'))))\n"
        "    print(task.figures, task.outputs, task.shape, task.provides, task.sums, task.guess)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
