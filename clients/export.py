"""A model as two files: ``model.safetensors`` and ``card.json``, which says how to build and feed the network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import load_file
from torch import nn

from clients.settings import ClientSettings
from common.errors import RunError
from common.files import write_tensors, write_text
from models.networks import build
from models.parameters import Arrays, exchanged, set_arrays
from partitions.datasets import find_spec


@dataclass(frozen=True)
class Card:
    """What ``card.json`` says: which network, for which data, made by which run and client."""

    model: str
    dataset: str
    method: str
    client: str
    run: str


def save_model(folder: Path, arrays: Arrays, client: str, run: str, settings: ClientSettings) -> Path:
    """Write ``model.safetensors`` and ``card.json`` to ``folder`` and return it."""
    card = Card(settings.model, settings.dataset, settings.method, client, run)
    write_tensors(folder / "model.safetensors", arrays)
    write_text(folder / "card.json", json.dumps(vars(card), indent=2) + "\n")
    return folder


def load_model(folder: Path) -> tuple[nn.Sequential, Card]:
    """Read a folder written by :func:`save_model`; the network is ready for inference.

    Raises:
        RunError: if a file is missing or damaged.
    """
    try:
        card = Card(**json.loads((folder / "card.json").read_text(encoding="utf-8")))
        arrays = load_file(folder / "model.safetensors")
    except Exception as error:
        raise RunError(f"{folder} holds no readable model (model.safetensors and card.json): {error}") from error
    spec = find_spec(card.dataset)
    model = build(card.model, spec.shape, spec.classes, seed=0)
    if arrays.keys() != exchanged(model).keys():
        missing = sorted(arrays.keys() ^ exchanged(model).keys())
        raise RunError(
            f"{folder}: model.safetensors does not hold the tensors of '{card.model}'; it differs in {missing}"
        )
    try:
        set_arrays(model, arrays)
    except ValueError as error:
        raise RunError(f"{folder}: model.safetensors does not fit '{card.model}': {error}") from error
    return model.eval().requires_grad_(False), card


def predict(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return class probabilities (n, C) for network inputs (n, *shape)."""
    with torch.inference_mode():
        return torch.softmax(model(x), dim=1)
