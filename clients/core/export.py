"""Write and read a model: ``model.safetensors``, and ``card.json``, which describes network and data.

A third file, ``schema.toml``, describes the inputs of a dataset that is not in the suite's table. Boosted trees have
a fourth, which XGBoost reads.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from florilegium.clients.core.network import network_for
from florilegium.clients.core.settings import ClientSettings
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.files import write_tensors, write_text
from florilegium.common.model_folders import pretrained_hash
from florilegium.common.places import read_utf8
from florilegium.models.batch_norm import BatchStatistics
from florilegium.models.centers import Centers
from florilegium.models.conditioned import KINDS, Conditioned
from florilegium.models.ensemble import Ensemble
from florilegium.models.frozen import hash_of
from florilegium.models.neighbours import Neighbours
from florilegium.models.parameters import Arrays, arrays_of, set_arrays, whole
from florilegium.models.reduction import fitting
from florilegium.models.scaled import PREFIX, SCALING, Scaled
from florilegium.models.settings import NetworkSettings
from florilegium.models.statistics.xgboost_file import xgboost_model
from florilegium.models.trees import Trees
from florilegium.models.width import narrowed
from florilegium.models.zero_shot import Sizes, ZeroShot
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.schema import FILE, read_schema
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.choices import Choices
from florilegium.tasks.registry import CLASSIFICATION, make_task
from florilegium.tasks.task import Targets, Task

XGBOOST = "xgboost.json"
"""The file of boosted trees that XGBoost reads."""


@dataclass(frozen=True)
class Card:
    """Content of ``card.json``: the network, the dataset it is for, and the run and client that made it."""

    model: str
    dataset: str
    method: str
    client: str
    run: str
    ensemble: str = ""
    """What the members of an ensemble are combined by; "": the model is no ensemble."""
    neighbours: bool = False
    """Whether the model mixes a network with nearest neighbours among stored examples (kNN-Per)."""
    conditioned: str = ""
    """Kind of a network that a module between body and last block steers (FedCP, GPFL); "": none."""
    scale: float = 0.0
    """Factor on an extractor's outputs, if the parameters are made for each input (HyperFedZero); 0: they are not."""
    batch_statistics: bool = False
    """Whether batch norm uses each batch's own statistics in predictions."""
    shape: tuple[int, ...] = ()
    """Shape of inputs, if images are resized to it; (): the dataset's shape."""
    outputs: int = 0
    """Number of the network's outputs; 0: those of the task."""
    name: str = ""
    """Name of a natural client; "": it has none."""
    labels: tuple[int | str, ...] = ()
    """The words of the data for the classes, in their order; (): they have none, or the model predicts no labels."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """What the inputs are, and how they become numbers (:func:`described`); {}: an earlier version wrote the card."""
    task: str = ""
    """What the model was trained for, if it is not the dataset's own task."""
    standardise: str = "federation"
    """Whose rows have given the scales of a table's numbers."""
    scaled: bool = False
    """Whether the model begins with a client's own scaling."""
    network: dict[str, Any] = field(default_factory=dict)
    """The keys of the network besides ``model``, where they differ from their defaults."""
    tokenizer: str = ""
    """What has read texts as tokens: a folder's name or hub id; "": nothing has."""
    base: str = ""
    """Hash of the frozen parameters of a pretrained network, which the model's file lacks; "": it has all."""
    folder: str = ""
    """Hash of what the files of a pretrained network and tokenizer say besides weights; "": there are none."""
    choices: dict[str, Any] = field(default_factory=dict)
    """What the run's configuration said of the task (:class:`florilegium.tasks.choices.Choices`)."""
    fitted_scales: str = ""
    """Scales of a table's columns that a run has fitted, in place of the schema's; "": none."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the packages that the model was written with."""

    @property
    def keys(self) -> NetworkSettings:
        """The keys of the network.

        Raises:
            ConfigurationError: if this version does not know them.
        """
        try:
            return NetworkSettings.model_validate({"model": self.model, **self.network})
        except ValidationError as error:
            raise ConfigurationError(f"the card's keys of the network are not known here: {error}") from error


def save_model(
    folder: Path,
    model: nn.Module,
    client: str,
    run: str,
    settings: ClientSettings,
    shape: tuple[int, ...] = (),
    name: str = "",
) -> Path:
    """Write a model's files to ``folder``; return it. ``shape`` and ``name`` are those of :class:`Card`."""
    scaled = model if isinstance(model, Scaled) else None
    if isinstance(model, Scaled):
        model = model.network
    by_batch = isinstance(model, BatchStatistics)
    if isinstance(model, BatchStatistics):
        model = model.network
    combination = model.combination if isinstance(model, Ensemble) else ""
    memory = isinstance(model, Neighbours)
    conditioned = model.kind if isinstance(model, Conditioned) else ""
    scale = model.scale if isinstance(model, ZeroShot) else 0.0
    outputs = own_outputs(model)
    spec = dataset_of(settings)
    dataset = spec.name if Path(settings.dataset).is_absolute() else settings.dataset  # a path means nothing elsewhere
    labels = learned_by(model, spec).targets.labels
    base, reader = _base(model) if settings.based else {}, settings.tokenizer if spec.tokenizer else ""
    card = Card(
        settings.model, dataset, settings.method, client, run, combination, memory, conditioned, scale,
        by_batch, shape, outputs, name, labels, described(spec, shape), settings.task,
        settings.standardise, scaled is not None, settings.given(), reader,
        hash_of(arrays_of(base)), pretrained_hash(settings.model, reader), spec.choices.given(),
        settings.fitted_scales, _versions(),
    )  # fmt: skip
    if spec.folder:
        write_text(folder / FILE, read_utf8(Path(spec.folder) / FILE))
    own = {} if scaled is None else {f"{PREFIX}{name}": buffer for name, buffer in scaled.named_buffers(recurse=False)}
    write_tensors(
        folder / "model.safetensors",
        arrays_of({**{name: one for name, one in whole(model).items() if name not in base}, **own}),
    )
    write_text(folder / "card.json", json.dumps(vars(card), indent=2) + "\n")
    if isinstance(model, nn.Sequential) and isinstance(model[0], Trees):
        features = [(one.name, one.mean, one.std) for one in features_of(spec)]
        write_text(folder / XGBOOST, json.dumps(xgboost_model(model[0], spec.learned.family, features)) + "\n")
    return folder


def _base(model: nn.Module) -> dict[str, torch.Tensor]:
    from florilegium.models.adapters import of_files  # imports peft

    return of_files(model)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("florilegium", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # a Flower app that a node has unpacked is not installed
    return found


def described(spec: DatasetSpec, shape: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return what a network's inputs are, and how rows of data become inputs; JSON values.

    Args:
        spec: the dataset.
        shape: shape of inputs, if images are resized to it.

    Returns:
        "kind" (:class:`DatasetSpec`), "shape" and "type" of one input, and the "column" that it is read from; of images
        the "mean" and "std" of each channel, in units of 0..1, that normalise it; of tables, in the order of the
        features, the columns of "numbers" with mean and standard deviation, of "categories" with their values, one 0/1
        feature each, and of "vectors" with their lengths; if there are any, columns of "dates" (mean and deviation of
        days since 1970-01-01) with the "date_parts" that they become, before the categories, the "fill" for what is
        missing, and the columns of "indicators", which come last.
    """
    found: dict[str, Any] = {
        "kind": spec.kind, "shape": [*(shape or spec.shape)], "type": "int64" if spec.codes else "float32",
    }  # fmt: skip
    if spec.kind == "image":
        found |= {"layout": "channels, height, width", "mean": [*spec.mean], "std": [*spec.std]}
    if spec.x:
        found["column"] = spec.x
    if spec.table is not None:
        found |= {
            "numbers": {name: [*scale] for name, scale in spec.table.numbers.items()},
            "categories": {name: [*values] for name, values in spec.table.categories.items()},
            "vectors": {**spec.table.vectors},
        }
        if spec.table.further:
            table = spec.table
            found |= {
                "dates": {name: [*scale] for name, scale in table.dates.items()}, "date_parts": [*table.date_parts],
                "missing": table.missing, "fill": {**table.fill}, "indicators": [*table.indicators],
            }  # fmt: skip
    return found


def own_outputs(model: nn.Module) -> int:
    """Return the number of clusters if the model finds clusters; 0: it has an output for each class of its dataset."""
    return len(model[0].centers) if isinstance(model, nn.Sequential) and isinstance(model[0], Centers) else 0


def learned_by(model: nn.Module, spec: DatasetSpec) -> Task:
    """Return what a model has learned from a dataset: its task, or to tell clusters apart, which have no words."""
    clusters = own_outputs(model)
    return make_task(CLASSIFICATION, Targets((), clusters)) if clusters else spec.learned


def spec_of(folder: Path, card: Card) -> DatasetSpec:
    """Return the description of the dataset of the model in ``folder``."""
    spec = read_schema(folder.absolute()) if (folder / FILE).is_file() else find_spec(card.dataset)
    spec = spec.read_by(card.tokenizer, card.inputs["shape"][0] if card.tokenizer else 0)
    return spec.learned_as(card.task, Choices.read(card.choices)).scaled_by(card.standardise, card.fitted_scales)


def load_model(folder: Path) -> tuple[nn.Module, Card]:
    """Read a folder written by :func:`save_model`; the network is ready for inference.

    Raises:
        RunError: if a file is missing or damaged.
    """
    try:
        card = Card(**json.loads((folder / "card.json").read_text(encoding="utf-8")))
        arrays = {
            name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy has no bfloat16
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
    except Exception as error:
        raise RunError(f"{folder} holds no readable model (model.safetensors and card.json): {error}") from error
    own = {name: torch.from_numpy(arrays.pop(f"{PREFIX}{name}")) for name in SCALING} if card.scaled else {}
    if card.folder and card.folder != (found := pretrained_hash(card.model, card.tokenizer)):
        raise RunError(
            f"{folder}: the model was trained with other files of '{card.model}': what they say of architecture, "
            f"pooling and tokenizer has the hash {card.folder}, and here {found}; use those that it was trained with"
        )
    spec, shapes = spec_of(folder, card), {name: array.shape for name, array in arrays.items()}
    try:
        network = network_for(spec, card.keys, 0, shape=tuple(card.shape), outputs=card.outputs)
    except ConfigurationError as error:
        raise RunError(
            f"{folder}: the network cannot be built here, as the package with its code must be: {error}"
        ) from error
    try:
        model: nn.Module
        if card.ensemble:
            model = _ensemble(network, arrays, card.ensemble)
        elif card.neighbours:
            kept, labels = (torch.from_numpy(arrays[name]) for name in ("features", "labels"))
            model = Neighbours(network, kept, labels, *arrays["mixture"].tolist())
        elif card.conditioned:
            model = KINDS[card.conditioned].fitting(network, arrays)
        elif card.scale:
            sizes = Sizes.of(arrays)
            extractor = network_for(spec, card.keys, 0, outputs=2 * sizes.embedding)
            model = ZeroShot(extractor, network, sizes, card.scale)
        else:
            model = fitting(network, arrays)
            own_shapes = {name: tuple(tensor.shape) for name, tensor in whole(model).items()}
            if not card.base and own_shapes != shapes:
                model = narrowed(model, shapes)  # a sub-network of smaller width
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder}: model.safetensors does not fit '{card.model}': {error} is missing") from error
    base = _base(model) if card.base else {}
    if (found := hash_of(arrays_of(base))) != card.base:
        raise RunError(
            f"{folder}: the model goes with a pretrained base of hash {card.base}, and '{card.model}' has {found} "
            "here; use the files that it was trained with"
        )
    if arrays.keys() != whole(model).keys() - base.keys():
        missing = sorted(arrays.keys() ^ (whole(model).keys() - base.keys()))
        raise RunError(
            f"{folder}: model.safetensors does not hold the tensors of '{card.model}'; it differs in {missing}"
        )
    try:
        set_arrays(model, arrays)
    except ValueError as error:
        raise RunError(f"{folder}: model.safetensors does not fit '{card.model}': {error}") from error
    model = BatchStatistics(model) if card.batch_statistics else model
    model = Scaled(model, **own) if card.scaled else model
    return model.eval().requires_grad_(False), card


def _ensemble(network: nn.Sequential, arrays: Arrays, combination: str) -> Ensemble:
    members = []
    for number in range(len(arrays["weights"])):
        prefix = f"members.{number}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        members.append(fitting(network, own))
    return Ensemble(members, [1.0] * len(members), combination)  # the weights are loaded from the file later


@torch.inference_mode()
def predict(model: nn.Module, x: torch.Tensor, task: Task) -> torch.Tensor:
    """Return what the task makes of a model's outputs for network inputs (n, *shape), such as probabilities (n, C)."""
    return task.activate(model(x))
