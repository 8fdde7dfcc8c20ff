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
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.loading import dataset_of
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
    network = network_for(dataset_of(keys), "linear", seed=1)
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


@pytest.mark.parametrize("kind", ["memory", "statistics"])
def test_what_onnx_cannot_say_is_refused(kind: str, tmp_path: Path) -> None:
    shape, features = (1, 8, 8), np.zeros((3, 100), np.float32)
    memory = Neighbours(mlp(shape, 10), torch.from_numpy(features), torch.arange(3), 1, 0.5, 1.0)
    model = memory if kind == "memory" else BatchStatistics(cnn_bn(shape, 10))
    with pytest.raises(RunError, match=r"cannot be written as ONNX: it .*Use `florilegium predict` with its folder"):
        write_onnx(model, shape, tmp_path / "model.onnx", TASK)
    assert not (tmp_path / "model.onnx").exists()
