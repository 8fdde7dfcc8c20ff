"""FedIIR: the penalty and its gradient, the running mean, its limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.wire import BESIDE, unpack
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import assert_rounded, config, make_client, perform

KEYS: dict[str, Value] = {
    "method": "fediir", "model": "mlp", "num-clients": 6, "participation": 0.5, "rounds": 4, "local-epochs": 1,
    "learning-rate": 0.05, "evaluate-every": 1, "fediir.penalty": 0.1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _examples() -> Examples:
    generator = torch.Generator().manual_seed(1)
    return Examples(torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator))


def test_step_is_along_the_penalised_loss() -> None:
    """One full-batch step, against central differences of ℓ + γ‖∇ℓ − ḡ‖² in double precision."""
    examples = _examples()
    keys = {**KEYS, "local-steps": 1, "batch-size": 8, "learning-rate": 1.0}
    client = make_client(examples, model := build("mlp", (1, 8, 8), 10, 1), **keys)
    start, rng = get_arrays(model), np.random.default_rng(1)
    names = list(start)[-2:]
    mean = {name: 0.1 * rng.normal(size=start[name].shape).astype(np.float32) for name in names}
    answer = perform(client, "train", start | {BESIDE + n: a for n, a in mean.items()}).arrays
    double = build("mlp", (1, 8, 8), 10, 1).double()
    parameters = dict(double.named_parameters())

    def objective() -> float:
        loss = cross_entropy(double(examples.x.double()), examples.y)
        gradients = torch.autograd.grad(loss, [parameters[name] for name in names])
        return loss.item() + 0.1 * sum(
            float((g - torch.from_numpy(mean[name])).square().sum()) for name, g in zip(names, gradients, strict=True)
        )

    for name, parameter in parameters.items():
        for _ in range(4):
            index = tuple(int(rng.integers(n)) for n in parameter.shape)
            before, ends = parameter.detach()[index].item(), []
            for sign in (1, -1):
                parameter.data[index] = before + sign * 1e-6
                ends.append(objective())
            parameter.data[index] = before
            slope = (ends[0] - ends[1]) / 2e-6
            assert start[name][index] - answer[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_identical_clients_add_nothing() -> None:
    """Without memory the mean gradient is each client's own, at the received model: the first step is plain SGD's."""
    examples = _examples()
    keys = {**KEYS, "local-steps": 1, "batch-size": 8}
    client = make_client(examples, model := build("mlp", (1, 8, 8), 10, 1), **keys)
    start = get_arrays(model)
    mean = perform(client, "gradient", start).arrays  # of any number of such clients
    ours = perform(client, "train", start | mean).arrays
    plain = perform(make_client(examples, model, **{**keys, "method": "fedavg"}), "train", start)
    for name, array in plain.arrays.items():
        assert_rounded(ours[name], array)
    rng = np.random.default_rng(1)
    elsewhere = {name: array + rng.normal(size=array.shape).astype(np.float32) for name, array in mean.items()}
    other = perform(client, "train", start | elsewhere).arrays
    assert any(not np.allclose(other[name], array, atol=1e-4) for name, array in plain.arrays.items())


def test_without_penalty_it_is_fedavg(run: Runs) -> None:
    none = read_checkpoint(run("none", **{"fediir.penalty": 0.0})).arrays
    plain = read_checkpoint(run("plain", method="fedavg")).arrays
    assert all(np.array_equal(none[name], array) for name, array in plain.items())


def test_running_mean(run: Runs) -> None:
    """ḡ_2 = m(1 − m)·ĝ_1 + (1 − m)·ĝ_2, ĝ_t the plain mean of what the cohort answered in round t."""
    m = 0.75
    path = run("run", rounds=2, nodes=1, **{"fediir.momentum": m})
    means = []
    for message, reply in zip(run.grid.sent, run.grid.received, strict=True):
        if message.metadata.message_type == "train" and message.content["config"]["phase"] == "gradient":
            arrays = unpack(reply.content["arrays"])
            means.append({name: array / 3 for name, array in arrays.items()})
    state = read_checkpoint(path).state
    assert len(means) == 2
    assert state
    for name, array in state.items():
        np.testing.assert_allclose(array, m * (1 - m) * means[0][name] + (1 - m) * means[1][name], rtol=1e-4, atol=1e-7)


def test_defaults_are_the_authors_for_rotated_mnist() -> None:
    _, hyper = parse(config(method="fediir"))
    assert (hyper.penalty, hyper.momentum) == (0.01, 0.95)


def test_resume_and_packing(run: Runs) -> None:
    run.check_resume_and_packing()


def test_network_without_a_classifier_of_its_own(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="blocks"):
        run("refused", model="linear")
