"""Networks of other packages in whole methods: layers with state or chance, tied and frozen parameters, export."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model, save_model
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, arrays_of, get_arrays, trained, unexchanged, whole
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.datasets import find_spec
from florilegium.strategies.folder.run_folder import read_checkpoint, read_frozen
from tests.runs import Runs
from tests.support import config, make_client, mostly_long, perform, settings

SHAPE, CLASSES = (1, 8, 8), 10
KEYS: dict[str, Value] = {
    "num-clients": 4,
    "samples-per-client": 80,
    "participation": 1.0,
    "local-epochs": 1,
    "batch-size": 32,
    "rounds": 4,
    "evaluate-every": 1,
}


def _name(function: str) -> str:
    return f"tests.models.foreign:{function}"


def _examples(count: int) -> Examples:
    generator = torch_generator(3, "examples")
    x = torch.randn(count, 8, 8, 1, generator=generator).permute(0, 3, 1, 2)
    return Examples(x, torch.randint(CLASSES, (count,), generator=generator))


def _run(path: Path, function: str, **keys: Value) -> Arrays:
    """Carry out a short run; return the final model, with what is frozen."""
    few = {"num_clients": 2, "samples_per_client": 150, "participation": 1.0, "rounds": 1, "local_epochs": 1}
    run_here(config(**{"model": _name(function), "batch_size": 128, **few, **keys}), path)
    return read_frozen(path) | read_checkpoint(path).arrays


def _plain(function: str, examples: Examples, rate: float, size: int) -> torch.nn.Module:
    """Return the network after an epoch of SGD as plain PyTorch does it, with the client's batches and draws."""
    network = build(_name(function), SHAPE, CLASSES, 1).train()
    generator = torch_generator(1, "client", "0", 1, "train")
    order = torch.randperm(len(examples), generator=generator)
    with torch_draws(generator.initial_seed(), "layers"):
        for rows in order.split(size):
            network.zero_grad()
            cross_entropy(network(examples.x[rows]), examples.y[rows]).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    if parameter.grad is not None:
                        parameter -= rate * parameter.grad
    return network


@pytest.mark.parametrize(
    "function",
    ["FlattenNet", "ViewNet", "Tied", "Attention", "Recurrent", "frozen_body", "cumulative_norm", "many_tensors"],
)
def test_a_client_is_plain_pytorch(function: str) -> None:
    examples = _examples(40)
    network = build(_name(function), SHAPE, CLASSES, 1)
    client = make_client(examples, network, model=_name(function), local_epochs=1, batch_size=16, learning_rate=0.1)
    state = torch.get_rng_state()
    answer = perform(client, "train", get_arrays(network))
    assert torch.equal(torch.get_rng_state(), state)
    expected = get_arrays(_plain(function, examples, 0.1, 16))
    assert answer.arrays.keys() == expected.keys()
    for name, array in answer.arrays.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("function", mostly_long(["Attention", "cumulative_norm"], "Attention"))
def test_results_depend_neither_on_packing_nor_on_resuming(tmp_path: Path, function: str) -> None:
    Runs(tmp_path, KEYS).check_resume_and_packing(model=_name(function), momentum=0.5)


def test_a_single_last_example_is_trained_on() -> None:
    examples, name = _examples(33), _name("cumulative_norm")
    network = build(name, SHAPE, CLASSES, 1)
    client = make_client(examples, network, model=name, local_epochs=1, batch_size=16)
    perform(client, "train", get_arrays(network))
    assert unexchanged(network)["2.num_batches_tracked"] == 2  # 16 and 17 examples
    alone = make_client(_examples(1), network, model=name, local_epochs=1, batch_size=16)
    with pytest.raises(RunError, match="at least 2 examples in a batch"):
        perform(alone, "train", get_arrays(network))


METHODS: list[dict[str, Any]] = [
    {"method": "fedprox", "fedprox.mu": 1.0},
    {"method": "scaffold"},
    {"method": "scaffold", "scaffold.option": 2},
    {"method": "ditto"},
    {"method": "feddyn"},
    {"method": "fednova", "fednova.mu": 1.0},
    {"method": "pfedme", "finetune-epochs": 1},
    {"method": "per-fedavg", "finetune-epochs": 1},
    {"method": "fedgtst", "rounds": 2},
    {"method": "fedtta"},
]


@pytest.mark.parametrize("method", ["flowdup", "hyperfedzero", "heterofl", "fedrolex"])
def test_methods_that_make_all_parameters_refuse_frozen_ones(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has frozen parameters .* method '{method}' makes all parameters"):
        _run(tmp_path / "run", "frozen_body", method=method, **{"flowdup.dimensions": 20})


@pytest.mark.parametrize("method", mostly_long(["pefll", "pfedhn", "ld-fedavg"], "pfedhn"))
def test_methods_that_make_parameters_make_the_trained_ones(tmp_path: Path, method: str) -> None:
    network = build(_name("frozen_body"), SHAPE, CLASSES, 1)
    _run(tmp_path / "run", "frozen_body", method=method, **{"ld-fedavg.dimensions": 20})
    checkpoint = read_checkpoint(tmp_path / "run")
    frozen = {*arrays_of(whole(network))} - {*trained(network)}
    assert not any(name.endswith(one) for name in (*checkpoint.arrays, *checkpoint.state) for one in frozen)
    model, _ = load_model(personalise(tmp_path / "run", tmp_path / "model", "0"))
    found, before = arrays_of(whole(model)), arrays_of(whole(network))
    assert {name for name in before if np.array_equal(found[name], before[name])} == frozen


@pytest.mark.parametrize(
    "keys",
    [pytest.param(keys, marks=() if keys["method"] in ("ditto", "fedprox") else pytest.mark.long) for keys in METHODS],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_methods_leave_frozen_parameters_and_train_the_others(tmp_path: Path, keys: dict[str, Value]) -> None:
    for function in ("frozen_body", "Tied"):
        initial = build(_name(function), SHAPE, CLASSES, 1)
        final = _run(tmp_path / function, function, **keys)
        for name, array in arrays_of(whole(initial)).items():
            moves = name in trained(initial) and "unused" not in name
            assert np.array_equal(array, final[name]) != moves, name


@pytest.mark.parametrize("method", mostly_long(["fedper", "fedrep", "fedbabu", "fedsr", "fediir", "moon"], "fedrep"))
def test_methods_that_cut_leave_frozen_blocks(tmp_path: Path, method: str) -> None:
    initial = arrays_of(whole(build(_name("frozen_body"), SHAPE, CLASSES, 1)))
    final = _run(tmp_path / "run", "frozen_body", method=method)
    assert np.array_equal(initial["0.1.weight"], final["0.1.weight"])
    assert not np.array_equal(initial["1.weight"], final["1.weight"])


@pytest.mark.parametrize("where", ["server", "device"])
def test_frozen_parameters_get_no_noise(tmp_path: Path, where: str) -> None:
    keys: dict[str, Value] = {
        "privacy.unit": "client",
        "privacy.noise-multiplier": 1.0,
        "privacy.noise-at": where,
        "privacy.sampling": "fixed",
    }
    final = _run(tmp_path / "run", "frozen_body", weighting="uniform", **keys)
    initial = arrays_of(whole(build(_name("frozen_body"), SHAPE, CLASSES, 1)))
    for name in initial:
        assert np.array_equal(initial[name], final[name]) == name.startswith("0."), name


def test_buffers_with_noise_are_refused(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform"}
    with pytest.raises(
        ConfigurationError, match=r"has the buffer '0.positions', which noise would change.*persistent=F"
    ):
        _run(tmp_path / "run", "with_buffer", **keys)


@pytest.mark.parametrize("method", ["fedper", "knn-per", "pfedfda", "fedsr", "fediir", "lg-fedavg"])
def test_a_single_block_is_not_cut(tmp_path: Path, method: str) -> None:
    message = r"model: '.*:DropoutNet' is a single block: its children one after the other.*return an nn.Sequential"
    with pytest.raises(ConfigurationError, match=message):
        _run(tmp_path / "run", "DropoutNet", method=method)


def test_what_is_frozen_whole_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'fedrep' trains the blocks that clients share, and those of .* frozen"
    ):
        _run(tmp_path / "run", "frozen_body", method="fedrep", **{"fedrep.head-blocks": 2})


def test_names_in_the_configuration() -> None:
    for name in ("torchvision:resnet18", "timm:resnet18", _name("dense")):
        assert settings(model=name).model == name
    with pytest.raises(ConfigurationError, match=r"model: 'tests.models.foreign:none' cannot be imported: .*no 'none'"):
        settings(model=_name("none"))
    with pytest.raises(ConfigurationError, match="it needs model = 'centers'"):
        settings(model=_name("dense"), method="optimal")
    with pytest.raises(ConfigurationError, match=r"fails in evaluation mode on inputs \(3, 80\) torch.int64"):
        network_for(find_spec("shakespeare"), NetworkSettings(model=_name("dense")), 1)


@pytest.mark.parametrize("function", ["ViewNet", "Attention", "FlattenNet"])
def test_an_exported_model_predicts_the_same(tmp_path: Path, function: str) -> None:
    network = build(_name(function), SHAPE, CLASSES, 4).eval()
    save_model(tmp_path, network, "0", "run", settings(model=_name(function)))
    loaded, card = load_model(tmp_path)
    x = _examples(6).x
    assert card.model == _name(function)
    with torch.no_grad():
        assert torch.equal(loaded(x), network(x))


def test_an_exported_model_without_its_package(tmp_path: Path) -> None:
    save_model(tmp_path, build("mlp", SHAPE, CLASSES, 4), "0", "run", settings(model="mlp"))
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps({**card, "model": "no_such_package:net"}))
    with pytest.raises(RunError, match=r"network cannot be built here.*'no_such_package:net' cannot be imported"):
        load_model(tmp_path)


def test_example_privacy_trains_what_is_not_frozen(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 1.0}
    final = _run(tmp_path / "run", "frozen_body", **keys)
    initial = arrays_of(whole(build(_name("frozen_body"), SHAPE, CLASSES, 1)))
    for name in initial:
        assert np.array_equal(initial[name], final[name]) == name.startswith("0."), name
    assert math.isfinite(float(final["1.weight"].sum()))
