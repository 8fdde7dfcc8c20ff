"""What is refused before a run: methods and privacy that need more than the task offers, with what would do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from florilegium.apps.assembly.parts import assemble
from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.stacked_training import Training
from florilegium.clients.core.together import Company
from florilegium.clients.core.training import train
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.device_data import read_device
from florilegium.partitions.sources.schema import read_schema
from florilegium.strategies.folder.main_figure import MainFigure, main_of, read_main, recorded
from florilegium.tasks.registry import make_task
from florilegium.tasks.regression import Regression
from florilegium.tasks.task import NEEDS, Targets
from tests.support import TASK, config, settings

NUMBER = make_task("regression", Targets(("y",)))


class OfBatches(Regression):
    """A loss of a batch alone, as of pairs of examples."""

    per_example = False

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the largest squared error of the batch."""
        return (outputs - y).square().max()


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.task == "targets"])
def test_what_a_method_needs_is_known_and_said(method: str) -> None:
    needed = METHODS[method].client_class().needed(METHODS[method].hyper()())
    assert needed <= NEEDS.keys()
    if needed <= NUMBER.provides:
        assert method in fitting(NUMBER)
        return
    with pytest.raises(ConfigurationError) as caught:
        assemble(config(method=method, task="regression", partitioner="iid"), one_thread=True)
    said = str(caught.value)
    lacking = " and ".join(words for need, words in NEEDS.items() if need in needed - NUMBER.provides)
    assert said.startswith(f"method: '{method}' needs {lacking}; task 'Regression' of 'digits'")
    assert said.partition("would do: ")[2].split(", ") == fitting(NUMBER)


def test_a_part_of_a_method_may_need_more() -> None:
    """HeteroFL's masked loss is over a client's own classes; without it, any task will do."""
    keys = {"method": "heterofl", "task": "regression", "partitioner": "iid"}
    assemble(config(**keys), one_thread=True)
    with pytest.raises(ConfigurationError, match="'heterofl' needs one class for each example"):
        assemble(config(**{**keys, "capacity.masked-loss": True}), one_thread=True)


def test_private_examples_need_losses_of_examples() -> None:
    keys = {"task": f"{__name__}:OfBatches", "partitioner": "iid", "privacy.unit": "example", "momentum": 0.0}
    with pytest.raises(ConfigurationError, match=r"privacy\.unit: 'example' needs a loss of each example"):
        assemble(config(**keys), one_thread=True)


def test_a_loss_of_batches_is_minimised_by_each_client_alone() -> None:
    task, network = OfBatches(Targets(("y",))), nn.Sequential(nn.Linear(2, 1))
    examples = Examples(torch.ones(4, 2), torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    generator, chosen = torch.Generator().manual_seed(1), settings(batch_size=4, local_epochs=1)
    assert Training.of(network, examples, chosen, generator, task=task) is None
    expected = float((network(examples.x) - examples.y).square().max().detach())
    assert train(network, examples, chosen, generator, task=task).loss == pytest.approx(expected)


def test_classes_are_not_made_of_numbers() -> None:
    with pytest.raises(ConfigurationError, match="classification needs a column of labels, and column 'y' holds numb"):
        settings(dataset="synthetic-linear", task="classification")


def test_work_together_that_fails_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each client then works alone."""

    class Broken(Training):
        @classmethod
        def carry_out(cls, waiting):  # type: ignore[no-untyped-def]
            raise ArithmeticError("no such operation")

    network = nn.Sequential(nn.Linear(3, 10))
    examples = Examples(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))

    def work() -> float:
        chosen = settings(batch_size=2, local_epochs=1)
        return train(network, examples, chosen, torch.Generator().manual_seed(1), task=TASK).loss

    company = Company(network, {"train": Broken.of})
    with caplog.at_level(logging.WARNING, "flwr"):
        for _ in range(2):
            assert all(isinstance(loss, float) for loss in company.run([work, work]))
    warnings = [record.getMessage() for record in caplog.records if "vectorise" in record.getMessage()]
    assert len(warnings) == 1
    assert "ArithmeticError: no such operation" in warnings[0]


def test_a_device_brings_several_targets(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text('target = ["u", "v"]\n[numbers]\na = [0.0, 1.0]\n')
    (tmp_path / "train.csv").write_text("a,u,v\n" + "".join(f"{i},{2 * i},{-i}\n" for i in range(20)))
    spec = read_schema(tmp_path)
    data = read_device(tmp_path, spec)
    for part in (data.train, data.test):
        torch.testing.assert_close(part.y, torch.cat([2 * part.x, -part.x], dim=1))
    (tmp_path / "train.csv").write_text("a,u,v\n1,2,x\n")
    with pytest.raises(DataError, match="column 'v' holds something that is no number in row 0: 'x'"):
        read_device(tmp_path, spec)


def test_readers_of_files_know_the_main_figure() -> None:
    assert read_main({}) == MainFigure() == main_of(TASK)  # runs of earlier versions classify
    known = read_main(recorded(NUMBER))
    assert (known.name, known.pooled, known.higher, known.percent) == ("rmse", "rmse_pooled", False, False)
    assert known.columns == ("rmse", "rmse_global", "rmse_pooled", "std", "worst_decile", "mae", "r2", "loss")
