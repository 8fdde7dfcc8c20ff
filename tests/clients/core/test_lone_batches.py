"""Batch norm that needs two examples in a batch, and last batches of one: in every method, training and evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.engines.one_process import run_here
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.training import batches, features, least_batch, train
from florilegium.common.errors import RunError
from florilegium.common.seeds import torch_generator
from florilegium.common.settings import Value
from florilegium.models.batch_norm import BatchStatistics
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.results import read_summary
from tests.fingerprints import cases
from tests.models.foreign import FlattenNet, lone_channels
from tests.support import TASK, adapting, config, mostly_long, settings

MODEL = "tests.models.foreign:lone_channels"
WITHOUT = ("pefll", "pfedhn", "hyperfedzero")  # their networks are generated, and have no running statistics
METHODS_OF_NETWORKS = [name for name in fitting(TASK) if name not in WITHOUT and "model" not in METHODS[name].implies]
SHAPE = (1, 8, 8)


def _examples(count: int) -> Examples:
    generator = torch_generator(5, "examples")
    return Examples(torch.randn(count, *SHAPE, generator=generator), torch.arange(count) % 10)


@pytest.mark.parametrize("method", mostly_long(METHODS_OF_NETWORKS, "fedavg", "per-fedavg"))
@pytest.mark.parametrize("count", [17, *(pytest.param(count, marks=pytest.mark.long) for count in (18, 19))])
def test_no_client_fails(method: str, count: int, tmp_path: Path) -> None:
    """With batches of eight, the last one has 1, 2 or 3 examples; FLowDUP cuts them into halves."""
    keys: dict[str, Value] = {
        "finetune-epochs": 1, **cases()[method], "model": MODEL, "partitioner": "iid", "samples-per-client": count,
        "batch-size": 8, "num-clients": 4, "participation": 1.0, "labeled-fraction": 1.0, "runs-dir": str(tmp_path),
        **adapting(method, "0.1,1.0"),
    }  # fmt: skip
    run_here(config(**keys, **{"run-name": "run"}), tmp_path / "run")
    assert not (tmp_path / "run" / "failures.jsonl").exists()
    assert "failed" not in read_summary(tmp_path / "run")


def test_every_example_counts_once() -> None:
    examples = _examples(17)
    parts = [*batches(examples, 8, torch_generator(1), least_batch(lone_channels(SHAPE, 10), examples))]
    assert [len(part) for part in parts] == [8, 9]
    assert sorted(torch.cat(parts).tolist()) == [*range(17)]


def test_a_network_that_needs_no_two_keeps_its_batches() -> None:
    assert least_batch(FlattenNet(SHAPE, 10), _examples(17)) == 1  # its channels are maps of 6 × 6 numbers


@pytest.mark.parametrize(("count", "size"), [(1, 8), (9, 1)])
def test_a_batch_that_can_only_be_one_is_said(count: int, size: int) -> None:
    told = f"needs at least 2 examples in a batch.* it has {count} training examples, batch-size is {size}"
    with pytest.raises(RunError, match=told):
        train(lone_channels(SHAPE, 10), _examples(count), settings(batch_size=size), torch_generator(1), task=TASK)


@pytest.mark.parametrize("count", [1, 257])
def test_statistics_of_each_batch_in_an_evaluation(count: int) -> None:
    """The last of 257 test examples joins the others; a single one is normalised as in training so far."""
    network, examples = lone_channels(SHAPE, 10), _examples(count)
    found = features(BatchStatistics(network), examples)
    if count == 1:
        expected = network.eval()(examples.x)
    else:
        network[0][2].momentum = 0.0  # type: ignore[index, assignment]
        expected = network.train()(examples.x)
    torch.testing.assert_close(found, expected)
