"""Pretrained transformers of Hugging Face as networks of blocks: the base reads tokens, the head its features."""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.model_folders import CONFIG, check_weights, find_folder, named_folder, read_json, text_facts

log = logging.getLogger("flwr")

BASE, HEAD = "base", "head"
"""The blocks of a transformer: the pretrained part, and the layer that is new for the task."""
_GENERATIVE = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of architectures that predict the next token."""
_POOLED: dict[str, Literal["mean", "first", "last"]] = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first", "pooling_mode_lasttoken": "last",
}  # fmt: skip
"""How a sentence transformer's folder states its pooling."""


class Base(nn.Module):
    """A pretrained transformer, from tokens to features.

    Args:
        model: a model of transformers.
        pooling: features of a text: the mean over its tokens, those of the first or last; "none": of each token.
    """

    def __init__(self, model: nn.Module, pooling: Literal["mean", "first", "last", "none"]) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.drawn: frozenset[str] = getattr(model, "drawn", frozenset())  # parameters that are in no file

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d) of texts (n, length), int64 tokens, −1 behind the last; without pooling (n, l, d).

        Texts are cut to the longest of the batch, l tokens: what is padded beyond costs nothing.
        """
        mask = x >= 0
        if not torch.compiler.is_exporting():
            longest = max(1, int((mask.any(dim=0) * torch.arange(1, x.shape[1] + 1, device=x.device)).max()))
            x, mask = x[:, :longest], mask[:, :longest]
        found = self.model(input_ids=x.clamp(min=0), attention_mask=mask.long())
        hidden: Tensor = found.logits if "logits" in found else found.last_hidden_state
        hidden = hidden[:, hidden.shape[1] - x.shape[1] :]  # behind a prompt's vectors
        return _pooled(hidden, mask, self.pooling)


def _pooled(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "mean":
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "first":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1).clamp(min=1) - 1]
    return hidden


class Positions(nn.Module):
    """Puts outputs of tokens (n, l, C) as tasks have them, (n, C, l), for the l tokens of the longest text."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, C, l)."""
        return x.movedim(1, 2)


def build_transformer(
    name: str, shape: tuple[int, ...], classes: int, *, codes: int, positions: tuple[int, ...], pooling: str,
    checkpointing: bool = False,
) -> nn.Sequential:  # fmt: skip
    """Return the pretrained transformer of a folder, with a new head for the task; parameters in single precision.

    Args:
        name: value of key ``model``.
        shape: (length,) of the padded texts.
        classes: number of outputs C, of a text or of each position.
        codes: number of different tokens in the texts; if C is as large, and each position has outputs, the model's own
            head predicts the next token.
        positions: (length,) if each position has outputs; () if a text has.
        pooling: value of key ``pooling``.
        checkpointing: whether training keeps the inputs of layers alone, and computes the layers once more.

    Raises:
        ConfigurationError: if the folder cannot be read, or its model does not fit the texts.
    """
    folder = find_folder(named_folder(name), "model")
    check_weights(folder, "model")
    facts = text_facts(folder, "model")
    if len(shape) != 1:
        raise ConfigurationError(f"model: '{name}' reads texts as tokens, not inputs of shape {shape}")
    if shape[0] > facts.limit:
        raise ConfigurationError(f"text-length: '{name}' reads {facts.limit} tokens at most (found: {shape[0]})")
    if codes > facts.vocabulary:
        raise ConfigurationError(
            f"tokenizer: it has {codes} tokens, and the model of '{name}' knows {facts.vocabulary}; use its own"
        )
    predicts = bool(positions) and classes == codes
    if predicts and not generative(folder):
        raise ConfigurationError(
            f"task: next-token needs a model that was trained to predict the next token; '{name}' reads texts in both "
            "directions, and would see what it is to predict"
        )
    model = _read(folder, "AutoModelForCausalLM" if predicts else "AutoModel")
    if checkpointing:
        _checkpoint(model, name)
    if predicts:
        return nn.Sequential(OrderedDict([(BASE, Base(model, "none")), ("positions", Positions())]))
    how: Any = "none" if positions else pooling_of(folder, pooling)
    head = nn.Linear(width_of(model, folder), classes)
    ending = [("positions", Positions())] if positions else []
    return nn.Sequential(OrderedDict([(BASE, Base(model, how)), (HEAD, head), *ending]))


def _checkpoint(model: Any, name: str) -> None:
    if not model.supports_gradient_checkpointing:
        raise ConfigurationError(f"gradient-checkpointing: '{name}' has no layers for it; leave it out")
    model.config.use_cache = False  # which would keep what is to be computed again
    model.activation_checkpointing_enable({"use_reentrant": False})


def generative(folder: Path) -> bool:
    """Return whether a folder's model was trained to predict the next token."""
    return any(str(one).endswith(_GENERATIVE) for one in read_json(folder / CONFIG, "model").get("architectures") or [])


def pooling_of(folder: Path, pooling: str) -> str:
    """Return the pooling that key ``pooling`` asks for; "auto": what a sentence transformer's folder states; else the
    last token of a model that predicts the next one, and the first of any other, which stands for the text."""
    if pooling != "auto":
        return pooling
    stated = read_json(folder / "1_Pooling" / CONFIG, "model")
    if found := [how for name, how in _POOLED.items() if stated.get(name)]:
        return found[0]
    return "last" if generative(folder) else "first"


def width_of(model: nn.Module, folder: Path) -> int:
    """Return d, the length of a model's feature vectors."""
    config = getattr(model.config, "text_config", model.config)
    width = getattr(config, "hidden_size", None) or getattr(config, "dim", None) or getattr(config, "d_model", None)
    if not isinstance(width, int):
        raise ConfigurationError(f"model: {folder / CONFIG} states no hidden_size")
    return width


def _read(folder: Path, kind: str) -> nn.Module:
    """Return a folder's model; parameters that its file lacks are drawn from PyTorch's generator, and logged."""
    import transformers
    from transformers.utils import logging as chatter

    verbosity, shown = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        model, loaded = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32,
            output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # a damaged file, or one of another architecture, raises anything
        raise ConfigurationError(
            f"model: {folder} cannot be read as a pretrained model: {type(error).__name__}: {error}"
        ) from error
    finally:
        chatter.set_verbosity(verbosity)
        if shown:
            chatter.enable_progress_bar()
    missing, unused, other = (sorted(map(str, loaded.get(f"{name}_keys") or ())) for name in (
        "missing", "unexpected", "mismatched"))  # fmt: skip
    known = [name for name, _ in model.named_parameters()]
    if other or 2 * len(missing) > len(known):
        wrong = f"{other[0]} has another shape" if other else f"{len(missing)} of {len(known)} parameters are missing"
        raise ConfigurationError(f"model: the weights in {folder} do not fit its {CONFIG}: {wrong}")
    for names, what in ((missing, "not in the file, and drawn from the seed"), (unused, "in the file, and not used")):
        if names:
            log.info("model: %d parameters of %s are %s: %s", len(names), folder.name, what, _first(names))
    module: nn.Module = model
    vars(module)["drawn"] = frozenset(missing)
    return module


def _first(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
