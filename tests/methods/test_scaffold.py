"""SCAFFOLD: its limits, the drift it corrects, its variates, what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.optimize import minimize

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform, settings

KEYS: dict[str, Value] = {
    "method": "scaffold", "model": "mlp", "num-clients": 6, "participation": 0.5, "rounds": 4, "local-epochs": 1,
    "learning-rate": 0.05, "weighting": "uniform", "evaluate-every": 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


@pytest.mark.parametrize("option", [1, 2])
def test_one_client_is_sgd(run: Runs, option: int) -> None:
    """With one client c = c_1 in every round, so that nothing is corrected."""
    keys: dict[str, Value] = {
        "num-clients": 1,
        "participation": 1.0,
        "classes-per-client": 10,
        "scaffold.option": option,
    }
    ours, plain = (read_checkpoint(run(method, method=method, **keys)).arrays for method in ("scaffold", "fedavg"))
    for name, array in plain.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-6)


def _opposed(folder: Path) -> Path:
    """Write a dataset of two clients whose best models are far apart: noisy labels along opposite directions."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    client = np.repeat([0, 1], 200)
    chance = 1 / (1 + np.exp(-3 * np.where(client == 0, x[:, 0] + 1.5, x[:, 1] - 2.5)))
    folder.mkdir()
    pq.write_table(
        pa.table(
            {"a": x[:, 0], "b": x[:, 1], "label": (rng.random(400) < chance).astype(int), "who": client.astype(str)}
        ),
        folder / "train.parquet",
    )
    (folder / "schema.toml").write_text(
        'label = "label"\nlabels = [0, 1]\nclients = ["who"]\n[numbers]\na = [0.0, 1.0]\nb = [0.0, 1.0]\n'
    )
    return folder


@pytest.mark.long
def test_reaches_the_optimum_that_many_local_steps_miss(run: Runs, tmp_path: Path) -> None:
    """The optimum of the mean of both clients' losses, by scipy; full batches, 20 local steps."""
    keys: dict[str, Value] = {
        "dataset": str(_opposed(tmp_path / "data")), "model": "linear", "partitioner": "natural", "num-clients": 0,
        "participation": 1.0, "rounds": 120, "local-steps": 20, "batch-size": 1000, "learning-rate": 0.5,
        "evaluate-every": 0,
    }  # fmt: skip
    federation, dataset = federate(settings(**{**KEYS, **keys}))
    clients = [simulated(federation, dataset, i).train for i in range(2)]

    def objective(weights: np.ndarray) -> float:
        """The difference of the two classes' scores is all that counts."""
        losses = []
        for data in clients:
            score = data.x.numpy() @ weights[:2] + weights[2]
            losses.append(np.logaddexp(0, np.where(data.y.numpy() == 1, -score, score)).mean())
        return float(np.mean(losses))

    best = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).fun
    excess = {}
    for method in ("scaffold", "fedavg"):
        weight, bias = read_checkpoint(run(method, method=method, **keys)).arrays.values()
        excess[method] = objective(np.array([*(weight[1] - weight[0]), bias[1] - bias[0]])) - best
    assert excess["scaffold"] < 1e-5
    assert excess["fedavg"] > 1e-3


@pytest.mark.parametrize("option", [1, 2])
def test_control_variates(tmp_path: Path, option: int) -> None:
    """One local step: both options give the gradient at the received model, and the step is along g + c − c_i."""
    generator = torch.Generator().manual_seed(1)
    examples = Examples(torch.randn(7, 1, 8, 8, generator=generator), torch.randint(10, (7,), generator=generator))
    model = build("mlp", (1, 8, 8), 10, 1)
    keys = {**KEYS, "local-steps": 1, "batch-size": 7, "scaffold.option": option}
    client = make_client(examples, model, folder=tmp_path, **keys)
    torch.nn.functional.cross_entropy(model(examples.x), examples.y).backward()
    gradient = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
    start = get_arrays(model)
    rng = np.random.default_rng(1)
    c, own = ({name: rng.normal(size=a.shape).astype(np.float32) for name, a in start.items()} for _ in range(2))
    client.state.save(own)
    answer = perform(client, "train", start | {BESIDE + n: a for n, a in c.items()}).arrays
    kept = client.state.load()
    assert kept is not None
    for name, g in gradient.items():
        np.testing.assert_allclose(answer[name], start[name] - 0.05 * (g + c[name] - own[name]), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(kept[name], g, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(answer[BESIDE + name], c[name] + g - own[name], rtol=1e-3, atol=1e-5)


def test_server_variate_is_the_mean_of_the_clients_own(run: Runs, tmp_path: Path) -> None:
    """c = mean over all clients of c_i, 0 for those that never took part."""
    from safetensors.numpy import load_file

    path = run("run")
    c = {n.removeprefix(BESIDE): a for n, a in read_checkpoint(path).state.items() if n.startswith(BESIDE)}
    newest = [sorted(folder.glob("state-*"))[-1] for folder in (path / "clients").iterdir()]
    assert 3 <= len(newest) <= 6
    for name, array in c.items():
        np.testing.assert_allclose(array, sum(load_file(file)[name] for file in newest) / 6, rtol=1e-4, atol=1e-6)


def test_resume_and_packing(run: Runs) -> None:
    run.check_resume_and_packing()


@pytest.mark.parametrize("keys", [{"optimizer": "adam"}, {"momentum": 0.9}, {"max-grad-norm": 1.0}])
def test_mean_of_steps_is_no_gradient_of_other_optimisers(run: Runs, keys: dict[str, Value]) -> None:
    with pytest.raises(ConfigurationError, match=r"scaffold\.option"):
        run("refused", **keys)
    run("taken", **{**keys, "scaffold.option": 1, "rounds": 1})


def test_stock_strategies_send_no_variate(tmp_path: Path) -> None:
    model = build("mlp", (1, 8, 8), 10, 1)
    client = make_client(Examples(torch.zeros(2, 1, 8, 8), torch.zeros(2).long()), model, folder=tmp_path, **KEYS)
    with pytest.raises(RunError, match="own strategy"):
        client.fit([*get_arrays(model).values()], {})
