"""Pretrained transformers as networks of blocks, compared with transformers and peft used by hand."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.blocks import block_names, cut
from florilegium.models.built import build_network
from florilegium.models.parameters import exchanged, frozen, get_arrays, parts_of, set_arrays, trained, whole
from florilegium.models.settings import AdapterSettings, NetworkSettings
from florilegium.privacy.alone import unlike_alone
from florilegium.privacy.dp_sgd import PrivateGradients
from tests.pretrained import LENGTH, WIDTH, WORDS, real, tiny

CLASSES, RANK = 3, 4
TEXTS = ([2, 9, 10, 11, 3], [2, 20, 3], [2, 31, 32, 33, 34, 35, 36, 3])


def _x(length: int = LENGTH) -> Tensor:
    x = torch.full((len(TEXTS), length), -1)
    for row, text in enumerate(TEXTS):
        x[row, : len(text)] = torch.tensor(text)
    return x


def _keys(folder: Path | None = None, pooling: str = "auto", **adapter: object) -> NetworkSettings:
    given = {"kind": "lora", "rank": RANK, "targets": "query,value"} | adapter
    return NetworkSettings(
        model=f"transformers:{folder or tiny()}",
        pooling=pooling,
        adapter=AdapterSettings(**given),  # type: ignore[arg-type]
    )


def _build(folder: Path | None = None, seed: int = 1, pooling: str = "auto", **adapter: object) -> nn.Sequential:
    return build_network(_keys(folder, pooling, **adapter), (LENGTH,), CLASSES, seed, codes=WORDS + 4)


def _hidden(text: list[int]) -> Tensor:
    """Return what transformers computes for a text alone, without padding, (tokens, width)."""
    model = AutoModel.from_pretrained(tiny()).eval()
    with torch.no_grad():
        found: Tensor = model(input_ids=torch.tensor([text])).last_hidden_state[0]
        return found


_POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(dim=0), "first": lambda hidden: hidden[0], "last": lambda hidden: hidden[-1],
}  # fmt: skip


@pytest.mark.parametrize("pooling", [*_POOL])
def test_features_are_those_of_each_text_alone(pooling: str) -> None:
    network = _build(pooling=pooling).eval()
    body, _ = cut(network, ["head"])
    wanted = torch.stack([_POOL[pooling](_hidden(text)) for text in TEXTS])  # B = 0, so that LoRA adds nothing yet
    torch.testing.assert_close(body(_x()), wanted, atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing() -> None:
    network = _build().eval()
    torch.testing.assert_close(network(_x()), network(_x(12)), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(network(_x())[1:2], network(_x()[1:2, :3]), atol=1e-6, rtol=1e-5)


def test_a_folder_of_a_sentence_transformer_says_how_to_pool(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    first, mean = (cut(_build(where).eval(), ["head"])[0](_x()) for where in (tiny(), folder))
    torch.testing.assert_close(first, torch.stack([_hidden(text)[0] for text in TEXTS]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean, torch.stack([_hidden(t).mean(0) for t in TEXTS]), atol=1e-5, rtol=1e-5)


def test_blocks_tell_adapters_base_and_head_apart() -> None:
    network = _build()
    assert block_names(whole(network)) == ["A", "B", "base", "head"]
    assert block_names(exchanged(network)) == ["A", "B", "head"]
    assert exchanged(network).keys() == trained(network).keys()
    sizes = {name: tuple(tensor.shape) for name, tensor in exchanged(network).items()}
    a, b = ([s for n, s in sizes.items() if n.startswith(part)] for part in ("A.", "B."))
    assert a == [(RANK, WIDTH)] * 4
    assert b == [(WIDTH, RANK)] * 4
    assert sizes["head.weight"] == (CLASSES, WIDTH)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 16 / RANK), (True, 16 / RANK**0.5)])
def test_lora_adds_the_scaled_product(rslora: bool, scale: float) -> None:
    network, plain = _build(rslora=rslora).eval(), _build(kind="head", targets="").eval()
    arrays = get_arrays(network)
    rng = np.random.default_rng(1)
    arrays |= {n: rng.normal(size=a.shape).astype(np.float32) / 10 for n, a in arrays.items() if n.startswith("B.")}
    set_arrays(network, arrays)
    set_arrays(plain, {name: array for name, array in arrays.items() if name.startswith("head.")})
    for number in range(2):
        attention = plain.get_submodule(f"base.model.encoder.layer.{number}.attention.self")
        for name in ("query", "value"):
            layer = f"encoder_layer_{number}_attention_self_{name}.weight"
            product = torch.from_numpy(arrays[f"B.{layer}"] @ arrays[f"A.{layer}"])
            with torch.no_grad():
                attention.get_submodule(name).weight.add_(product, alpha=scale)  # type: ignore[operator]
    torch.testing.assert_close(network(_x()), plain(_x()), atol=1e-5, rtol=1e-5)


def test_the_correction_is_added_to_the_weights() -> None:
    network, plain = _build(correction=True).eval(), _build(kind="head", targets="").eval()
    names = [name for name in exchanged(network) if name.startswith("correction.")]
    assert len(names) == 4
    assert not {*names} & trained(network).keys()
    torch.testing.assert_close(network(_x()), plain(_x()), atol=1e-6, rtol=1e-5)
    delta = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32) / 10
    set_arrays(network, {names[0]: delta})
    with torch.no_grad():
        plain.get_submodule("base.model.encoder.layer.0.attention.self.query").weight.add_(torch.from_numpy(delta))  # type: ignore[operator]
    assert names[0] == "correction.encoder_layer_0_attention_self_query.weight"
    torch.testing.assert_close(network(_x()), plain(_x()), atol=1e-5, rtol=1e-5)


def test_fixed_matrices_are_frozen() -> None:
    network = _build(fixed="A")
    assert block_names(exchanged(network)) == ["B", "head"]
    assert sum(name.startswith("A.") for name in frozen(network)) == 4


def test_other_adapters() -> None:
    names = {
        kind: block_names(exchanged(_build(kind=kind, targets=targets, **more)))
        for kind, targets, more in (
            ("ia3", "query,value,output.dense", {}), ("prompt", "", {"tokens": 5}), ("head", "", {}),
            ("lora", "query", {"dora": True}),
        )
    }  # fmt: skip
    assert names == {
        "ia3": ["ia3", "head"], "prompt": ["prompt", "head"], "head": ["head"],
        "lora": ["A", "B", "magnitude", "head"],
    }  # fmt: skip
    assert not frozen(_build(kind="none", targets=""))


def test_a_prompt_stands_before_each_text() -> None:
    network = _build(kind="prompt", targets="", tokens=5, pooling="mean").eval()
    assert exchanged(network)["prompt.prompt_encoder.embedding.weight"].shape == (5, WIDTH)
    torch.testing.assert_close(network(_x())[1:2], network(_x()[1:2, :3]), atol=1e-6, rtol=1e-5)


def test_initial_values_follow_from_the_seed() -> None:
    first, again, other = (get_arrays(_build(seed=seed)) for seed in (1, 1, 2))
    for name, array in first.items():
        assert np.array_equal(array, again[name])
        assert array.any() != name.startswith("B.")
        assert np.array_equal(array, other[name]) == name.startswith("B.")
    assert parts_of(_build(seed=1))[1].hash == parts_of(_build(seed=2))[1].hash


def test_a_copy_trains_its_own_adapters() -> None:
    network = _build()
    twin = copy.deepcopy(network)
    twin(_x()).sum().backward()
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(p.grad is not None for n, p in twin.named_parameters() if n.startswith(("A.", "B.", "head.")))


@pytest.mark.parametrize("ghost", [False, True])
def test_gradients_of_single_examples(ghost: bool) -> None:
    network = _build()
    assert not unlike_alone(network, _x(), ghost=ghost)
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("more", [{"kind": "ia3"}, {"dora": True}])
def test_adapters_without_gradients_of_single_examples_are_known(more: dict[str, object]) -> None:
    try:
        found = unlike_alone(_build(**more), _x(), ghost=False)
    except RunError as error:
        found = str(error)
    assert found


def test_a_module_with_two_names_counts_once() -> None:
    layer = nn.Linear(2, 1)
    network = nn.Sequential(nn.ModuleDict({"again": layer}), layer)
    network[0].forward = lambda x: x  # type: ignore[method-assign]
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    private = PrivateGradients(network, 0.0, 1e6, 1.0, 2)
    private.backward(lambda rows: private.model(x[rows])[:, 0], torch.arange(2))
    private.protect()
    assert torch.equal(layer.weight.grad, x.mean(dim=0, keepdim=True))  # type: ignore[arg-type]
    private.end()


def _without_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _half(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def _other_shape(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace(f'"hidden_size": {WIDTH}', '"hidden_size": 64'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "there is no folder"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (_without_safetensors, "pytorch_model.bin is not read, since opening it may run code"),
        (_half, "cannot be read as a pretrained model"),
        (_other_shape, "do not fit|cannot be read"),
    ],
)
def test_a_wrong_folder_is_refused(damage: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    damage(folder)
    with pytest.raises(ConfigurationError, match=said):
        _build(folder)


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ({"targets": "querry"}, "no layer of .* is called 'querry'"),
        ({"rank": 33}, "adapter.rank: 33 is more than the 32"),
        ({"kind": "ia3", "targets": "nothing"}, "no layer of .* is called 'nothing'"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(adapter: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _build(**adapter)


def test_texts_that_do_not_fit_are_refused() -> None:
    for shape, codes, said in (
        ((LENGTH + 1,), 4, "64 tokens at most"),
        ((LENGTH,), 5000, "5000 tokens, and the model"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            build_network(_keys(), shape, CLASSES, 1, codes=codes)


def test_the_real_weights_are_those_that_all_know() -> None:
    """The hash of sentence-transformers/all-MiniLM-L6-v2; two packages carry these weights."""
    content = (real() / "all-MiniLM-L6-v2" / "model.safetensors").read_bytes()
    assert sha256(content).hexdigest() == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_layers_that_are_computed_once_more_have_the_same_gradients() -> None:
    found, calls = [], []
    for checkpointing in (False, True):
        settings = _keys(rank=RANK).model_copy(update={"gradient_checkpointing": checkpointing})
        network = build_network(settings, (LENGTH,), CLASSES, 1, codes=WORDS + 4)
        layer = next(module for name, module in network.named_modules() if name.endswith("layer.0.attention"))
        seen: list[int] = []
        layer.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(1))
        network.train()
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        nn.functional.cross_entropy(network(_x()), torch.tensor([0, 1, 2])).backward()
        found.append([p.grad for p in network.parameters() if p.requires_grad])
        calls.append(len(seen))
    assert calls == [1, 2]
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))
