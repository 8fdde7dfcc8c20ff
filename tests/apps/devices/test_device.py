"""What a device's owner can ask it: what is kept, predictions, a copy, ONNX, and to forget."""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pyarrow
import pyarrow.parquet
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from PIL import Image
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from florilegium.apps import client_app
from florilegium.apps.assembly.node_config import allowance_of, parse_node, read_node
from florilegium.apps.cli.app import cli
from florilegium.apps.devices.stored_runs import kept
from florilegium.apps.runs.predictions import write_onnx
from florilegium.clients.core.export import load_model, predict
from florilegium.common.errors import BudgetSpentError, ConfigurationError, DataError, RefusedError, RunError
from florilegium.common.settings import Value
from florilegium.models.ensemble import Ensemble
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.privacy.dp_sgd import Account
from florilegium.privacy.ledger import SPENT
from tests.grid import InProcessGrid
from tests.partitions.made import make
from tests.runs import Runs
from tests.support import TASK, config, make_client, perform, settings

KEYS: dict[str, Value] = {
    "method": "fedper", "model": "mlp", "num-clients": 2, "partitioner": "iid", "rounds": 2, "participation": 1.0,
    "local-epochs": 1, "evaluate-every": 0, "privacy.unit": "example", "privacy.noise-multiplier": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state-dir of two devices that share a disk, and took part in two runs."""
    folder = tmp_path_factory.mktemp("site")
    federation, dataset = federate(settings(num_clients=2, partitioner="iid"))
    for i in range(2):
        write_device(federation, dataset, i, folder / "data" / str(i))
    nodes: list[dict[str, Any]] = [
        {"client-id": name, "data-path": str(folder / "data" / str(i)), "state-dir": str(folder / "state")}
        for i, name in enumerate("ab")
    ]
    for name in ("first", "second"):
        Runs(folder / "runs", KEYS)(name, nodes=nodes)
    return folder / "state"


def test_an_owner_can_ask_for_privacy(state: Path, tmp_path: Path) -> None:
    """A run without private examples is refused, in words that the server may read."""
    node = {"client-id": "a", "data-path": str(state / "none"), "state-dir": str(tmp_path), "max-epsilon": 2.0}
    InProcessGrid({}, [])  # messages ask for a task
    keys = config(**{**KEYS, "privacy.unit": "none", "privacy.noise-multiplier": 0.0})
    context = Context(1, 7, node, RecordDict(), keys)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=r"privacy\.unit = 'example' .found: 'none'"):
        client_app.app(Message(RecordDict(), 7, "query.roster"), context)
    with pytest.raises(DataError, match="max-epsilon needs state-dir"):
        parse_node({"data-path": "/data", "max-epsilon": 2.0})


@pytest.mark.parametrize(
    ("model", "node", "variable", "threads"),
    [
        ("mlp", {}, "", 1), ("mlp", {"threads": 2}, "", 2), ("mlp", {}, "3", 3), ("mlp", {"threads": 2}, "3", 2),
        ("resnet18", {}, "", 3), ("resnet18", {"threads": 1}, "", 1),
    ],
)  # fmt: skip
def test_small_networks_have_one_thread_unless_the_owner_names_a_number(
    model: str, node: dict[str, Value], variable: str, threads: int, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has three cores, or the variable says so."""
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        own = {"client-id": "a", "data-path": str(state.parent / "data" / "0"), **node}
        client_app._host.cache_clear()
        client_app._host_of(Context(1, 7, own, RecordDict(), config(model=model, data_dir="")))  # type: ignore[arg-type]
        assert torch.get_num_threads() == threads
    finally:
        threadpool_limits(1)
        torch.set_num_threads(before)
        client_app._host.cache_clear()
    with pytest.raises(DataError, match="threads"):
        parse_node({"data-path": "/data", "threads": -1})


def test_an_owners_limit_is_over_all_runs(tmp_path: Path) -> None:
    """What runs cost adds up, whatever becomes of the runs' own accounts."""
    options = parse_node({"data-path": "/data", "client-id": "a", "state-dir": str(tmp_path), "max-epsilon": 2.0})
    limit = allowance_of(options, "example")
    assert limit is not None
    examples, paid = Examples(torch.zeros(20, 1, 8, 8), torch.arange(20) % 10), 0
    for number in range(9):
        keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 3.0, "local-steps": 2}
        client = make_client(examples, build("mlp", (1, 8, 8), 10, 1), folder=tmp_path / f"run{number}", **keys)
        client.allowance = limit
        with suppress(BudgetSpentError):
            perform(client, "train", get_arrays(client.model))
            paid += 1
    assert 1 < paid < 8
    spent = Account(tmp_path / "_privacy" / "a.json", 1e-5)
    assert spent.history == [(3.0, 0.5, 2 * paid)]
    assert spent.epsilon() <= 2.0 < spent.epsilon((3.0, 0.5, 2))
    for multiplier in (3.0, 0.0):
        with pytest.raises(BudgetSpentError, match=f"{SPENT}: the owner of this device allows ε = 2 over all runs"):
            limit.pay(multiplier, 0.5, 2)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('data-path = "/d" client-id="a"', 'data-path = "/d"'),
        ('data-path="/d" state-dir="/s" max-epsilon= 3', "max-epsilon= 3"),
        ('data-path="/d" labeled =false', "labeled =false"),
        ('data-path="/d", client-id="a"', ","),
    ],
)
def test_what_flower_would_ignore_is_an_error(text: str, rest: str) -> None:
    """Also a budget that would not hold: Flower drops a pair with blanks around "=", and reports nothing."""
    with pytest.raises(DataError, match=f"Flower would ignore .*{re.escape(rest)}"):
        read_node(text)
    for command in ("check", "serve"):
        done = CliRunner().invoke(cli, ["device", command, *(["--node-config"] if command == "serve" else []), text])
        assert done.exit_code != 0


def test_pairs_and_files_are_read_as_flower_reads_them(tmp_path: Path) -> None:
    pairs = "data-path=\"/a b/c\"  client-id='x'\n labeled=false threads=2"
    (tmp_path / "node.toml").write_text('data-path = "/a b/c"\nclient-id = "x"\nlabeled = false\nthreads = 2\n')
    assert read_node(pairs) == read_node(str(tmp_path / "node.toml"))
    assert read_node(pairs).data_path == "/a b/c"


def _call(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.stdout


def test_status_tells_what_is_kept(state: Path) -> None:
    found = kept(state)
    assert [(one.run, one.client, one.round, one.model) for one in found] == [
        (run, client, 2, True) for run in ("first", "second") for client in "ab"
    ]
    assert all(one.epsilon > 0 for one in found)
    assert [one.size for one in found] == [sum(f.stat().st_size for f in one.folder.iterdir()) for one in found]
    assert "mlp for digits" in _call("device", "status", "--state-dir", state)


@pytest.mark.parametrize("count", [1, 3])
def test_predictions_are_those_of_the_devices_own_model(state: Path, tmp_path: Path, count: int) -> None:
    """Of one picture, or of a folder's, each by its name."""
    _, dataset = federate(settings(num_clients=2, partitioner="iid"))
    assert dataset.test is not None
    rows, spec = np.asarray(dataset.test.x[:count]), dataset.spec
    for i, pixels in enumerate(rows):
        Image.fromarray(pixels.squeeze()).save(tmp_path / f"{i}.png")
    inputs = tmp_path / "0.png" if count == 1 else tmp_path
    said = _call("device", "predict", "second", inputs, "--state-dir", state, "--client", "b")
    lines = list(csv.reader(io.StringIO(said)))[1:]
    x = (torch.from_numpy(rows).float() / 255 - spec.mean[0]) / spec.std[0]
    expected = predict(load_model(state / "second" / "b")[0], x.permute(0, 3, 1, 2), TASK).max(1)
    assert [line[0] for line in lines] == (["0"] if count == 1 else [f"{i}.png" for i in range(count)])
    assert [int(line[1]) for line in lines] == expected.indices.tolist()
    np.testing.assert_allclose([float(line[2]) for line in lines], expected.values, atol=2e-6)


def test_pictures_are_not_predicted_from_csv(state: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("image\n0\n")
    with pytest.raises(DataError, match="do not fit into a CSV file"):
        _call("device", "predict", "second", tmp_path / "x.csv", "--state-dir", state, "--client", "b")


def _assert_onnx_predicts_as(model: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    (found,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, predict(model, x, TASK).numpy(), rtol=1e-3, atol=1e-5)


def test_a_copy_and_onnx_predict_the_same(state: Path, tmp_path: Path) -> None:
    _call("device", "export", "first", tmp_path, "--state-dir", state, "--client", "a", "--onnx")
    model, card = load_model(tmp_path)
    assert (card.client, card.run) == ("a", "first")
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    _assert_onnx_predicts_as(model, x, tmp_path / "model.onnx")


@pytest.mark.long
def test_a_client_of_a_simulation_as_onnx(tmp_path: Path) -> None:
    Runs(tmp_path, KEYS)("run")
    _call("export", "run", "--client", 1, "--onnx", "--output", tmp_path / "model", "--runs-dir", tmp_path)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    _assert_onnx_predicts_as(load_model(tmp_path / "model")[0], x, tmp_path / "model" / "model.onnx")


@pytest.mark.long
def test_an_ensemble_as_onnx(tmp_path: Path) -> None:
    shape = (3, 32, 32)
    model = Ensemble([build("lenet", shape, 10, seed) for seed in (1, 2)], [0.3, 0.7], "probabilities").eval()
    write_onnx(model, shape, tmp_path / "model.onnx", TASK)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    _assert_onnx_predicts_as(model, x, tmp_path / "model.onnx")


@pytest.mark.long
def test_a_network_that_onnx_cannot_say(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(np.sort(x.numpy(), axis=1))

    with pytest.raises(RunError, match="this network cannot be written as ONNX"):
        write_onnx(Odd(), (3,), tmp_path / "model.onnx", TASK)
    assert not (tmp_path / "model.onnx").exists()


def test_what_is_missing_is_named(state: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing of run 'third' in .* Kept there: first \(a\), first \(b\)"):
        _call("device", "export", "third", tmp_path, "--state-dir", state)
    with pytest.raises(ConfigurationError, match="run 'first' has left models of a, b; name one"):
        _call("device", "export", "first", tmp_path, "--state-dir", state)
    with pytest.raises(ConfigurationError, match="'' is not the name of a run"):
        _call("device", "forget", "", "--state-dir", state, "--yes")
    with pytest.raises(ConfigurationError, match="state-dir: there is no folder"):
        _call("device", "status", "--state-dir", tmp_path / "nowhere")


def test_forgotten_is_all_of_a_run_and_nothing_else(state: Path) -> None:
    other = {path: path.read_bytes() for path in (state / "second").rglob("*") if path.is_file()}
    asked = CliRunner().invoke(cli, ["device", "forget", "first", "--state-dir", str(state)], input="n\n")
    assert asked.exit_code != 0
    assert (state / "first" / "a" / "model.safetensors").exists()
    _call("device", "forget", "first", "--state-dir", state, "--client", "a", "--yes")
    assert sorted(path.name for path in (state / "first").iterdir()) == ["b"]
    _call("device", "forget", "first", "--state-dir", state, "--yes")
    assert not (state / "first").exists()
    assert {path: path.read_bytes() for path in (state / "second").rglob("*") if path.is_file()} == other


def test_check_says_what_a_run_would_find(tmp_path: Path) -> None:
    federation, dataset = federate(settings(num_clients=2, partitioner="iid"))
    write_device(federation, dataset, 0, tmp_path)
    data = simulated(federation, dataset, 0)
    said = _call("device", "check", f'data-path="{tmp_path}" client-id="a"', "--dataset", "digits")
    assert said.startswith(f"a: {len(data.train)} training and {len(data.test)} test examples, 10 of 10 classes")
    with pytest.raises(DataError, match="there is no key 'label'"):
        _call("device", "check", f'data-path="{tmp_path}" label=true', "--dataset", "digits")


@pytest.mark.parametrize("name", ["1.10", "1e3", "true"])
def test_a_client_id_that_looks_like_a_fraction_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="client-id: write the name in quotes"):
        _call("device", "check", f'data-path="/nowhere" client-id={name}', "--dataset", "digits")


@pytest.mark.parametrize("dataset", ["shakespeare", "synthetic-linear"])
def test_check_reads_whatever_a_run_can_have(tmp_path: Path, dataset: str) -> None:
    """Also what the default network does not take: texts, and numbers to predict numbers from."""
    numbers = np.random.default_rng(1).normal(size=(12, 100))
    tables = {
        "shakespeare": make("shakespeare", 12).table,
        "synthetic-linear": pyarrow.table({"x": numbers.tolist(), "y": numbers[:, 0], "client": ["a"] * 12}),
    }
    pyarrow.parquet.write_table(tables[dataset], tmp_path / "train.parquet")
    said = _call("device", "check", f'data-path="{tmp_path}"', "--dataset", dataset)
    assert said.startswith("device: ")
    assert "training and" in said
