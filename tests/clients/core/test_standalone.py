"""An exported model stands alone: its folder is all that predictions need, and its card says what they are of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.engines.one_process import run_here
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.personal import personalise
from florilegium.apps.runs.predictions import write_onnx
from florilegium.clients.core.export import described, load_model, predict, save_model
from florilegium.clients.core.network import network_for
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.batch_norm import BatchStatistics
from florilegium.models.convnets import cnn_bn
from florilegium.models.mlp import mlp
from florilegium.models.neighbours import Neighbours
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.loading import dataset_of
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets
from tests.fingerprints import cases
from tests.support import TASK, config, mostly_long, settings

TABLE = 'label = "y"\nlabels = ["reject", "approve"]\n[numbers]\na = [10.0, 2.0]\n[categories]\nc = ["u", "v"]\n'
AMOUNT = 'target = "y"\n[numbers]\na = [10.0, 2.0]\n'
KINDS: dict[str, tuple[str, dict[str, list[object]]]] = {
    "table": (TABLE, {"a": [8.0, 12.0], "c": ["u", "v"]}),
    "regression": (AMOUNT, {"a": [8.0, 12.0]}),
}
MAKERS = [name for name, method in METHODS.items() if method.strategy_class().models != "none"]


def _moved(folder: Path, data: Path, away: Path) -> Path:
    """Move a model elsewhere, as to another machine, where its data are not."""
    shutil.move(folder, away)
    shutil.rmtree(data)
    return away


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_ones_own(kind: str, tmp_path: Path) -> None:
    schema, rows = KINDS[kind]
    data = tmp_path / "site"
    data.mkdir()
    (data / "schema.toml").write_text(schema)
    pq.write_table(pa.table(rows), tmp_path / "new.parquet")
    keys = settings(dataset=str(data), model="linear", method="fedavg")
    network = network_for(dataset_of(keys), NetworkSettings(model="linear"), seed=1)
    save_model(tmp_path / "model", network, "0", "run", keys)
    learned = dataset_of(keys).learned
    folder = _moved(tmp_path / "model", data, tmp_path / "elsewhere")
    card = json.loads((folder / "card.json").read_text())
    assert str(tmp_path) not in json.dumps(card)
    assert card["dataset"] == "site"
    assert torch.__version__.startswith(card["versions"]["torch"])
    assert card["inputs"]["numbers"] == {"a": [10.0, 2.0]}
    x = torch.tensor(
        [[-1.0, *([1.0, 0.0] if kind == "table" else [])], [1.0, *([0.0, 1.0] if kind == "table" else [])]]
    )
    expected = predict(network.eval(), x, learned)
    done = CliRunner().invoke(cli, ["predict", str(folder), str(tmp_path / "new.parquet")], catch_exceptions=False)
    cells = [line.split(",")[1] for line in done.stdout.splitlines()[1:]]
    if kind == "table":
        assert card["inputs"]["categories"] == {"c": ["u", "v"]}
        assert cells == [("reject", "approve")[best] for best in expected.argmax(dim=1).tolist()]
    else:
        assert [float(cell) for cell in cells] == pytest.approx(expected[:, 0].tolist(), rel=1e-4)


def test_what_inputs_are() -> None:
    cifar = find_spec("cifar10")
    assert described(cifar) == {
        "kind": "image", "shape": [3, 32, 32], "type": "float32", "layout": "channels, height, width",
        "mean": [*cifar.mean], "std": [*cifar.std], "column": cifar.x,
    }  # fmt: skip
    assert described(cifar, (3, 28, 28))["shape"] == [3, 28, 28]
    assert described(find_spec("shakespeare"))["type"] == "int64"


@pytest.mark.parametrize("method", mostly_long(MAKERS))
def test_every_method(method: str, tmp_path: Path) -> None:
    """The folder alone gives the predictions that the run's own client makes, wherever it lies."""
    keys: dict[str, Value] = {**cases()[method], "rounds": 1, "runs-dir": str(tmp_path), "run-name": "run"}
    if method in ("ppfe", "ppfe-linear", "fedl2p", "l2p", "mdm"):
        keys["rounds"] = cases()[method]["rounds"]
    run_here(config(**keys), tmp_path / "run")
    folder = personalise(tmp_path / "run", tmp_path / "model", "0")
    before, card = load_model(folder)
    shape = tuple(card.inputs["shape"])
    assert str(tmp_path) not in (folder / "card.json").read_text()
    shutil.rmtree(tmp_path / "run")
    after, _ = load_model(Path(shutil.move(folder, tmp_path / "elsewhere")))
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(predict(after, x, TASK), predict(before, x, TASK))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_files_in_half_precision_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    """A model that was converted to save space; bfloat16 is unknown to NumPy, and to safetensors' functions for it."""
    keys = settings(model="mlp", method="fedavg")
    network = network_for(dataset_of(keys), keys, seed=1)
    save_model(tmp_path, network, "0", "run", keys)
    half = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(half, tmp_path / "model.safetensors")
    model, _ = load_model(tmp_path)
    for parameter, exact in zip(model.parameters(), network.parameters(), strict=True):
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter, exact.to(dtype).float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["memory", "statistics"])
def test_what_onnx_cannot_say_is_refused(kind: str, tmp_path: Path) -> None:
    shape, features = (1, 8, 8), np.zeros((3, 100), np.float32)
    memory = Neighbours(mlp(shape, 10), torch.from_numpy(features), torch.arange(3), 1, 0.5, 1.0)
    model = memory if kind == "memory" else BatchStatistics(cnn_bn(shape, 10))
    with pytest.raises(RunError, match=r"cannot be written as ONNX: it .*Use `florilegium predict` with its folder"):
        write_onnx(model, shape, tmp_path / "model.onnx", TASK)
    assert not (tmp_path / "model.onnx").exists()


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    """PyTorch's exporter forgets the divisor of pooling, and would divide by nine."""
    shape = (1, 9, 9)

    def network(**keys: int) -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.AvgPool2d(3, **keys), torch.nn.Flatten(), torch.nn.Linear(9, 10))

    write_onnx(network(), shape, tmp_path / "plain.onnx", TASK)
    with pytest.raises(RunError, match=r"the file's outputs differ from the network's \(by 0\.\d+ for random"):
        write_onnx(network(divisor_override=5), shape, tmp_path / "model.onnx", TASK)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_files_of_confident_networks_are_finite(task: str, tmp_path: Path) -> None:
    """Outputs of ±200 become probabilities of 0 and 1."""
    made = make_task(task, Targets(("y",), 2))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, made.outputs[0], bias=False))
    with torch.no_grad():
        network[1].weight.copy_(torch.linspace(200, -200, made.outputs[0])[:, None])
    write_onnx(network, (1,), tmp_path / "model.onnx", made)
    found = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": np.array([[1], [-1]], np.float32)})[0]
    np.testing.assert_allclose(found.ravel(), [1, 0, 0, 1] if task == "classification" else [1, 0], atol=1e-6)


@pytest.mark.parametrize("name", ["dropout", "batch norm", "spectral norm", "lstm", "attention"])
def test_files_are_those_of_evaluation(name: str, tmp_path: Path) -> None:
    """A network that has just been trained is in training mode; its file predicts as it does in evaluation."""
    torch.manual_seed(1)
    x = torch.randn(5, 4, 6)
    layers: dict[str, list[torch.nn.Module]] = {
        "dropout": [torch.nn.Dropout(0.5)],
        "batch norm": [torch.nn.BatchNorm1d(4)],
        "spectral norm": [torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 6))],
        "lstm": [Sequences(torch.nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True))],
        "attention": [torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)],
    }
    network = torch.nn.Sequential(*layers[name], torch.nn.Flatten(), torch.nn.Linear(24, 10)).train()
    for _ in range(3):
        network(3 + 2 * x)  # running statistics and power iterations are no longer those of the beginning
    write_onnx(network, (4, 6), tmp_path / "model.onnx", TASK)
    found = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": x.numpy()})[0]
    expected = network.eval()(x).softmax(dim=1).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Sequences(torch.nn.Module):
    """The outputs of a recurrent network, without its states."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.network(x)[0]
        return outputs
