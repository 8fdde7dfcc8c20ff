"""The network that the keys of a run describe: built, with pretrained weights, and with adapters."""

from __future__ import annotations

from torch import nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.model_folders import find_folder, named_folder, text_facts
from florilegium.common.seeds import torch_draws
from florilegium.models.networks import build
from florilegium.models.settings import NetworkSettings


def build_network(
    settings: NetworkSettings,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    codes: int = 0,
    positions: tuple[int, ...] = (),
) -> nn.Sequential:
    """Build the network that ``settings`` describe; what is not pretrained is drawn from ``seed``.

    The arguments are those of :func:`florilegium.models.networks.build`.

    Raises:
        ConfigurationError: as there, or if weights or adapters do not fit the network.
    """
    if named_folder(settings.model):
        from florilegium.models.transformer import build_transformer  # transformers takes seconds to import

        if settings.weights:
            raise ConfigurationError(f"weights: '{settings.model}' has weights of its own; leave the key out")
        with torch_draws(seed, "model", settings.model):
            network = build_transformer(
                settings.model, shape, classes, codes=codes, positions=positions, pooling=settings.pooling,
                checkpointing=settings.gradient_checkpointing,
            )  # fmt: skip
    else:
        if settings.pooling != "auto":
            raise ConfigurationError(f"pooling: '{settings.pooling}' is for transformers:…, not '{settings.model}'")
        if settings.gradient_checkpointing:
            raise ConfigurationError(
                f"gradient-checkpointing is for transformers:…, not '{settings.model}'; leave it out"
            )
        sizes = settings.trees.model_dump() if settings.model == "trees" else {}
        network = build(settings.model, shape, classes, seed, codes=codes, positions=positions, sizes=sizes)
        if settings.weights:
            from florilegium.models.pretrained import load_weights

            load_weights(network, settings.weights)
    if settings.adapter.kind == "none":
        return network
    if settings.adapter.kind == "prompt" and (pretrained := named_folder(settings.model)):
        facts, needed = text_facts(find_folder(pretrained, "model"), "model"), shape[0] + settings.adapter.tokens
        if 0 < facts.positions < needed:
            raise ConfigurationError(
                f"text-length: {shape[0]} tokens and adapter.tokens = {settings.adapter.tokens} are more than the "
                f"{facts.positions} positions of '{settings.model}'; lower one of the two"
            )
    from florilegium.models.adapters import adapted  # imports peft

    with torch_draws(seed, "adapter", settings.model):
        return adapted(network, settings.adapter, settings.model)
