"""Files of parameters: torchvision's names, other classes, what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import resnet18

from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.built import build_network
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays, whole
from florilegium.models.pretrained import read_pretrained
from florilegium.models.settings import NetworkSettings
from tests.models import foreign
from tests.runs import Runs


def test_torchvisions_resnet_predicts_the_same(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = resnet18(num_classes=7).eval()
    for norm in (theirs.bn1, theirs.layer3[0].downsample[1]):
        norm.running_mean.add_(0.1)
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    network = build("resnet18-imagenet", (3, 64, 64), 7, 2)
    arrays = read_pretrained(tmp_path / "model.pth", get_arrays(network))
    assert arrays.keys() == get_arrays(network).keys()
    set_arrays(network, arrays)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_classifier_for_other_classes_is_left_out(tmp_path: Path) -> None:
    source, network = build("lenet", (1, 28, 28), 5, 1), build("lenet", (1, 28, 28), 10, 2)
    save_file({name: torch.from_numpy(a) for name, a in get_arrays(source).items()}, tmp_path / "model.safetensors")
    found = read_pretrained(tmp_path / "model.safetensors", get_arrays(network))
    assert get_arrays(network).keys() - found.keys() == {"fc3.weight", "fc3.bias"}
    assert all(np.array_equal(array, get_arrays(source)[name]) for name, array in found.items())


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.save(resnet18(num_classes=10).state_dict(), tmp_path / "model.pt")
    with pytest.raises(ConfigurationError, match=r"stem\.0\.weight is \(64, 3, 7, 7\).*\(64, 3, 3, 3\)"):
        read_pretrained(tmp_path / "model.pt", get_arrays(build("resnet18", (3, 32, 32), 10, 1)))
    with pytest.raises(ConfigurationError, match=r"conv1\.0\.weight is missing"):
        read_pretrained(tmp_path / "model.pt", get_arrays(build("lenet", (3, 32, 32), 10, 1)))


def test_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no parameters")
    for name in ("none.pt", "text.pt"):
        with pytest.raises(ConfigurationError, match=f"{name} is not a readable file"):
            read_pretrained(tmp_path / name, get_arrays(build("lenet", (3, 32, 32), 10, 1)))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_are_in_single_precision(tmp_path: Path, kind: torch.dtype) -> None:
    network = build("linear", (1, 8, 8), 10, 1)
    torch.save({name: nn.Parameter(p.to(kind)) for name, p in network.named_parameters()}, tmp_path / "model.pt")
    found = read_pretrained(tmp_path / "model.pt", get_arrays(network))
    for name, array in get_arrays(network).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], array, rtol=1e-2, atol=1e-3)


def test_a_classifier_of_another_name_is_missing(tmp_path: Path) -> None:
    network = build("lenet", (1, 28, 28), 10, 1)
    renamed = {name.replace("fc3", "classifier"): torch.from_numpy(a) for name, a in get_arrays(network).items()}
    save_file(renamed, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"fc3\.weight is missing"):
        read_pretrained(tmp_path / "model.safetensors", get_arrays(network))


@pytest.mark.parametrize("function", ["DropoutNet", "FlattenNet", "ViewNet"])
def test_a_state_dict_of_the_users_own_module_fits(tmp_path: Path, function: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = getattr(foreign, function)((1, 8, 8), 10).eval()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    network = build(f"tests.models.foreign:{function}", (1, 8, 8), 10, 2).eval()
    set_arrays(network, read_pretrained(tmp_path / "model.pt", get_arrays(network)))
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(x), module(x), rtol=1e-5, atol=1e-6)


def test_the_last_layer_of_a_single_block_starts_anew(tmp_path: Path) -> None:
    torch.save(foreign.DropoutNet((1, 8, 8), 7).state_dict(), tmp_path / "model.pt")
    network = build("tests.models.foreign:DropoutNet", (1, 8, 8), 10, 2)
    found = read_pretrained(tmp_path / "model.pt", get_arrays(network))
    assert list(found) == ["model.first.weight", "model.first.bias"]
    torch.save(foreign.DropoutNet((1, 6, 6), 10).state_dict(), tmp_path / "model.pt")
    with pytest.raises(ConfigurationError, match=r"model\.first\.weight is \(16, 36\), the network needs \(16, 64\)"):
        read_pretrained(tmp_path / "model.pt", get_arrays(network))


def test_torchvisions_weights_for_torchvisions_network(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        theirs = resnet18(num_classes=3).eval()
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    network = build("torchvision:resnet18", (3, 32, 32), 3, 2).eval()
    set_arrays(network, read_pretrained(tmp_path / "model.pth", get_arrays(network)))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(x), theirs(x), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------- key weights


def _file(folder: Path, network: nn.Module) -> str:
    save_file({name: tensor.clone() for name, tensor in whole(network).items()}, folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def test_weights_are_those_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = build("mlp", (1, 8, 8), 10, 5)
    tensors = {name: tensor.clone() for name, tensor in whole(source).items()}
    save_file(tensors | {"more.weight": torch.ones(2)}, tmp_path / "weights.safetensors")
    keys = NetworkSettings(model="mlp", weights=str(tmp_path / "weights.safetensors"))
    with caplog.at_level("INFO"):
        network = build_network(keys, (1, 8, 8), 10, 1)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in whole(network).items())
    assert "weights: 1 tensors in" in caplog.text
    assert "are not used: more.weight" in caplog.text


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    file = _file(tmp_path, build("mlp", (1, 6, 6), 10, 5))
    for weights, said in (
        (file, r"weights: .* does not fit the network: fc1\.1\.weight is \(64, 36\), the network needs \(64, 64\)"),
        (str(tmp_path / "none.safetensors"), "weights: there is no file"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            build_network(NetworkSettings(model="mlp", weights=weights), (1, 8, 8), 10, 1)
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        NetworkSettings(weights="/weights.pt")


def test_a_model_beside_frozen_weights_names_them(tmp_path: Path) -> None:
    file = _file(tmp_path, build("mlp", (1, 8, 8), 10, 5))
    run = Runs(tmp_path, {"num-clients": 2, "rounds": 1, "evaluate-every": 1, "participation": 1.0, "model": "mlp"})
    path = run("run", weights=file, **{"adapter.kind": "lora", "adapter.targets": "fc1.1", "adapter.rank": 2})
    folder = personalise(path, tmp_path / "out", "0")
    assert {name.partition(".")[0] for name in load_file(folder / "model.safetensors")} == {"A", "B", "fc3"}
    model, card = load_model(folder)
    assert card.base
    assert torch.equal(whole(model)["fc2.0.weight"], whole(build("mlp", (1, 8, 8), 10, 5))["fc2.0.weight"])
    _file(tmp_path, build("mlp", (1, 8, 8), 10, 6))
    with pytest.raises(RunError, match="goes with a pretrained base of hash"):
        load_model(folder)


def test_a_model_that_was_trained_whole_needs_no_file(tmp_path: Path) -> None:
    file = _file(tmp_path, build("mlp", (1, 8, 8), 10, 5))
    run = Runs(tmp_path, {"num-clients": 2, "rounds": 1, "evaluate-every": 1, "participation": 1.0, "model": "mlp"})
    folder = personalise(run("run", weights=file), tmp_path / "out", "0")
    Path(file).unlink()
    model, card = load_model(folder)
    assert card.network == {}
    assert not card.base
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
