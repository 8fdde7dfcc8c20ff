"""Flower's own strategies drive our ClientApp when every node hosts one client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from florilegium.clients.core.training import train
from florilegium.common.seeds import torch_generator
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import InProcessGrid, run_app
from tests.support import TASK, Value, config, settings

CLIENTS = 4


def _start(
    strategy: Strategy, rounds: int, method: str = "fedavg", unsent: str = "none"
) -> tuple[dict[str, np.ndarray], dict[int, float]]:
    grid = InProcessGrid(config(**{"num-clients": CLIENTS}, method=method), nodes=CLIENTS)
    arrays = build("mlp", (1, 8, 8), 10, 1).state_dict()
    sent = {name: array for name, array in arrays.items() if not name.startswith(unsent)}
    result = strategy.start(grid, ArrayRecord(sent), num_rounds=rounds)
    accuracies = {r: float(m["accuracy"]) for r, m in result.evaluate_metrics_clientapp.items()}  # type: ignore[arg-type]
    return {name: array.numpy() for name, array in result.arrays.items()}, accuracies


def test_stock_fedavg_computes_the_weighted_mean_of_our_clients() -> None:
    arrays, _ = _start(FedAvg(), rounds=1)
    options = settings(**{"num-clients": CLIENTS})
    federation, dataset = federate(options)
    start = get_arrays(build("mlp", (1, 8, 8), 10, 1))
    total, weight = {name: np.zeros_like(array) for name, array in start.items()}, 0
    for i in range(CLIENTS):
        model = build("mlp", (1, 8, 8), 10, 1)
        set_arrays(model, start)
        examples = simulated(federation, dataset, i).train
        # The round is in the message's config under Flower's name, "server-round".
        train(model, examples, options, torch_generator(options.seed, "client", str(i), 1, "train"), task=TASK)
        weight += len(examples)
        for name, array in get_arrays(model).items():
            total[name] += len(examples) * array
    for name, array in arrays.items():
        np.testing.assert_allclose(array, total[name] / weight, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", [FedAvg(), pytest.param(FedAdam(eta=0.01, tau=1e-3), marks=pytest.mark.long)], ids=["FedAvg", "FedAdam"]
)
def test_stock_strategies_learn(strategy: Strategy) -> None:
    _, accuracies = _start(strategy, rounds=8)
    assert accuracies[8] > accuracies[1] + 0.1


def test_a_stock_strategy_decouples_by_what_it_sends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays, _ = _start(FedAvg(), rounds=2, method="fedper", unsent="fc3")
    keys: dict[str, Value] = {"num-clients": CLIENTS, "participation": 1.0, "rounds": 2, "method": "fedper"}
    run_app(config(**keys, **{"runs-dir": str(tmp_path), "run-name": "own"}))
    own = read_checkpoint(tmp_path / "own").arrays
    assert arrays.keys() == own.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, own[name], atol=1e-5)
    _start(FedAvg(), rounds=1, method="fedper")
    assert "method 'fedper' keeps blocks that are each client's own, but the server sent all of them" in caplog.text


def test_numpyclient_interface() -> None:
    # What a stock simulation would call, with plain arrays: fit returns as many arrays as it was given.
    from florilegium.clients.core.state import ClientState
    from florilegium.clients.core.wire import Work
    from florilegium.clients.fedavg import FedAvgClient
    from florilegium.common.settings import NoHyper
    from tests.support import RUNS

    options = settings(**{"num-clients": CLIENTS})
    model = build("mlp", (1, 8, 8), 10, 1)
    start = get_arrays(model)
    data = simulated(*federate(options), 0)
    client = FedAvgClient("0", data, model, start, ClientState(RUNS, 1, [], 0, "0"), options, NoHyper(), Work(1))
    parameters = list(start.values())
    returned, count, metrics = client.fit(parameters, {"round": 1})
    assert count == len(data.train)
    assert [a.shape for a in returned] == [a.shape for a in parameters]
    assert metrics["loss"] > 0
    loss, count, metrics = client.evaluate(returned, {})
    assert count == len(data.test)
    with torch.no_grad():
        logits = model(data.test.x)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == data.test.y).float().mean().item())
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, data.test.y).item(), rel=1e-5)
