"""Adapters by peft in a network of blocks: the base is frozen, and each kind of adapter parameter is a block.

LoRA (Hu et al. 2022) adds B·A·α/r to the weights of chosen layers, with A (r, inputs) drawn and B (outputs, r) zero.
The modules of peft stay where they compute, and are named once more, in front of the network: ``A.….weight`` are all A,
``B.….weight`` all B. So a personal method, a layer or a message tells them apart as it does any blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.functional import linear

from florilegium.common.errors import ConfigurationError, nearest
from florilegium.models.blocks import OneBlock
from florilegium.models.parameters import frozen, trained, whole
from florilegium.models.settings import AdapterSettings
from florilegium.models.transformer import BASE, Base

_PARTS: Mapping[str, str] = {
    "lora_A": "A", "lora_B": "B", "correction": "correction", "lora_magnitude_vector": "magnitude", "ia3_l": "ia3",
    "prompt_encoder": "prompt",
}  # fmt: skip
"""Children of peft's layers that hold what is trained, and the block that each becomes."""
_UNSAID = (BASE, "model", "base_model", "base_layer")
"""Parts of a module's path that its short name leaves out."""
_NAME = "default"
"""peft's name of an adapter that has none."""


class Named(nn.Module):
    """Modules that compute elsewhere in the network, under names of their own; passes its input on."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x


class Matrix(nn.Module):
    """A matrix that is sent with a network, but not trained: a buffer ``weight``, zero at first."""

    weight: Tensor

    def __init__(self, shape: Iterable[int]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(*shape))


class Corrected(nn.Module):
    """A frozen dense layer with weights W + Δ, of which the server sets Δ, the ``correction``."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.correction = layer, Matrix(layer.weight.shape)

    @property
    def weight(self) -> Tensor:
        """W + Δ, (outputs, inputs)."""
        return self.layer.weight + self.correction.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (…, outputs) for x (…, inputs)."""
        return linear(x, self.weight, self.layer.bias)


def adapted(network: nn.Sequential, adapter: AdapterSettings, model: str) -> nn.Sequential:
    """Return a network of which only adapters and the head are trained; its parameters keep their values.

    Adapters' initial values are drawn from PyTorch's generator.

    Args:
        network: a sequence of blocks; the last is the head. Of a transformer without a head of its own, all is base.
        adapter: the adapters.
        model: value of key ``model``, for messages.

    Raises:
        ConfigurationError: if the adapters do not fit the network.
    """
    if adapter.kind == "none":
        return network
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    head = _head(network, model)
    if adapter.kind == "prompt":
        _prompt(network, adapter, model)
    elif adapter.kind != "head":
        _inject(network, adapter, model)
    for parameter in head.parameters():  # peft freezes all of a network that is no adapter
        parameter.requires_grad_(True)
    if adapter.kind == "head":
        _check_trained(network, model)
        return network
    blocks = _blocks(network)
    children = OrderedDict([*((name, Named(modules)) for name, modules in blocks.items()), *network._modules.items()])
    if len(children) < len(blocks) + len(network._modules):
        raise ConfigurationError(f"model: '{model}' has blocks named {', '.join(blocks)}, as adapters are; rename them")
    found = type(network)(children)
    if isinstance(network, OneBlock):
        assert isinstance(found, OneBlock)
        found.why = network.why
    _check_trained(found, model)
    return found


def _head(network: nn.Sequential, model: str) -> nn.Module:
    """Return what is trained beside adapters: the last block with parameters; nothing if a transformer is all."""
    with_parameters = [child for child in network if any(True for _ in child.parameters())]
    last = with_parameters[-1]
    if isinstance(last, Base):
        return nn.Identity()
    if len(with_parameters) > 1 and not isinstance(network, OneBlock):
        return last
    layers = [layer for layer in last.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ConfigurationError(f"adapter.kind: '{model}' is a single block, and ends with no dense layer to train")
    return layers[-1]


def _inject(network: nn.Sequential, adapter: AdapterSettings, model: str) -> None:
    """Put LoRA or IA³ into the layers that key ``adapter.targets`` names."""
    targets = [name.strip() for name in adapter.targets.split(",") if name.strip()] or None
    base = next((child.model for child in network if isinstance(child, Base)), None)
    body: nn.Module = base if base is not None else network
    layers = {name: layer for name, layer in body.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
              or type(layer).__name__ == "Conv1D"}  # fmt: skip
    kinds = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers))
    if targets is None and base is None:
        raise ConfigurationError(f"adapter.targets: name the layers of '{model}' to adapt, by the ends of: {kinds}")
    for target in targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            raise ConfigurationError(
                f"adapter.targets: no layer of '{model}' is called '{target}'{nearest(target, layers)} Ends of names: "
                f"{kinds}"
            )
    chosen = [
        layer for name, layer in layers.items() if any(name == t or name.endswith(f".{t}") for t in targets or ())
    ]
    transposed = any(type(layer).__name__ == "Conv1D" for layer in chosen or layers.values())
    config: Any
    if adapter.kind == "lora":
        config = peft.LoraConfig(
            r=adapter.rank, lora_alpha=adapter.alpha,  # type: ignore[arg-type]
            lora_dropout=adapter.dropout, target_modules=targets,
            use_rslora=adapter.rslora, use_dora=adapter.dora, fan_in_fan_out=transposed,
        )  # fmt: skip
    else:
        feed = [] if targets is None else [t for t in targets if _widens(body, t)]
        config = peft.IA3Config(target_modules=targets, feedforward_modules=feed if targets else None)
    try:
        peft.inject_adapter_in_model(config, body)
    except ValueError as error:
        raise ConfigurationError(
            f"adapter.targets: peft does not adapt '{model}' ({error}); name layers by the ends of: {kinds}"
        ) from error
    if adapter.kind == "lora":
        made = chosen or [layer.base_layer for layer in body.modules() if isinstance(layer, LoraLayer)]
        _change(body, adapter, model)
        least = min(min(layer.weight.shape[:2]) for layer in made)
        if adapter.rank > least:
            raise ConfigurationError(
                f"adapter.rank: {adapter.rank} is more than the {least} that a chosen layer of '{model}' has; lower it"
            )


def _change(body: nn.Module, adapter: AdapterSettings, model: str) -> None:
    """Let the LoRA layers of ``body`` have what keys ``adapter.fixed`` and ``adapter.correction`` ask for."""
    for layer in [layer for layer in body.modules() if isinstance(layer, LoraLayer)]:
        for name in ("lora_A",) if adapter.fixed else ():
            getattr(layer, name).requires_grad_(False)
        if adapter.correction:
            if type(layer.base_layer) is not nn.Linear or adapter.dora:
                raise ConfigurationError(
                    f"adapter.correction: it is for dense layers without adapter.dora, and '{model}' adapts a "
                    f"{type(layer.base_layer).__name__}"
                )
            layer.base_layer = Corrected(layer.base_layer)


def _widens(body: nn.Module, target: str) -> bool:
    """Return whether the layers called ``target`` return fewer numbers than they get, as the second of a pair."""
    layers = [layer for name, layer in body.named_modules() if name == target or name.endswith(f".{target}")]
    return any(isinstance(layer, nn.Linear) and layer.out_features < layer.in_features for layer in layers)


def _prompt(network: nn.Sequential, adapter: AdapterSettings, model: str) -> None:
    """Put trained vectors in front of each text."""
    base = next((child for child in network if isinstance(child, Base)), None)
    if base is None:
        raise ConfigurationError(f"adapter.kind: 'prompt' is for transformers, and '{model}' is none")
    kind = "CAUSAL_LM" if hasattr(base.model, "lm_head") else "FEATURE_EXTRACTION"
    config = peft.PromptTuningConfig(num_virtual_tokens=adapter.tokens, task_type=kind)
    base.model = peft.get_peft_model(base.model, config)


def _blocks(network: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """Return the modules of each kind of adapter parameter, by a name that tells where they are."""
    found: dict[str, dict[str, nn.Module]] = {}
    for path, module in network.named_modules():
        place, _, child = path.rpartition(".")
        if (block := _PARTS.get(child)) is None or not any(True for _ in whole(module)):
            continue
        own = module._modules.get(_NAME)
        named = "_".join(part for part in place.split(".") if part not in _UNSAID) or child
        found.setdefault(block, {})[named] = module if own is None else own
    return dict(sorted(found.items()))


def _check_trained(network: nn.Module, model: str) -> None:
    if not trained(network):
        raise ConfigurationError(
            f"adapter.kind: nothing of '{model}' would be trained, since it has no head of its own"
        )


def of_files(model: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters of a model on a pretrained base that its files have, by name.

    Others are frozen too: adapters that stay as they were drawn, and parameters that the files lack.
    """
    drawn = set[str]()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, Named):
            drawn |= {f"{prefix}{name}" for name, _ in module.named_parameters()}
        if isinstance(module, Base):
            own = ((name, name.replace(".base_layer", "")) for name, _ in module.model.named_parameters())
            drawn |= {f"{prefix}model.{name}" for name, plain in own if plain in module.drawn}
    return {name: tensor for name, tensor in frozen(model).items() if name not in drawn}
