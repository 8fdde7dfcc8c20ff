"""Transfer a run's features: train and test a new classifier on another dataset (FedGTST, section 6).

The feature extractor, all blocks of the run's network but the last, is frozen, or the whole network is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import TARGET, Settings, complete, parse
from florilegium.clients.core.export import save_model
from florilegium.clients.core.network import network_for
from florilegium.clients.core.training import evaluate, features, train
from florilegium.clients.core.worker import tune_process
from florilegium.common.errors import ConfigurationError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_text
from florilegium.common.pages import write_page, write_picture
from florilegium.common.seeds import torch_generator
from florilegium.common.settings import DataSettings, Section, Value
from florilegium.models.blocks import block_of, body_and_classifier, classifier_shape, last_blocks
from florilegium.models.parameters import arrays_of, set_arrays, whole
from florilegium.partitions.clientdata import Examples, resize, to_inputs
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.server_rows import matching
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.spec import Dataset, DatasetSpec, Split
from florilegium.strategies.folder.results import SUMMARY, read_summary
from florilegium.strategies.folder.run_folder import read_checkpoint, read_config, read_frozen
from florilegium.tasks.task import LOSS

_MAY_DIFFER = ("device", "seed", "data-dir", "cache-dir", "embeddings")
"""Keys that may differ from the run's configuration, besides transfer-*."""


@dataclass(frozen=True)
class Transferred:
    """Result of transferring a run's features to another dataset.

    Attributes:
        run: the run's id.
        target: the target dataset.
        trained: the part that was trained there: "classifier" or "whole".
        losses, values: loss and main figure on the target's test split, after every epoch.
        figure: the name of the main figure.
    """

    run: str
    target: str
    trained: str
    losses: list[float]
    values: list[float]
    figure: str
    percent: bool


def transfer(run: Path, overrides: Mapping[str, Value], output: Path) -> Transferred:
    """Train a new classifier on the features of ``run``; write ``transfer.json`` and the model to ``output``.

    Args:
        run: a finished run.
        overrides: keys ``transfer-*``, device, seed or data folders that differ from the run's configuration.
        output: the folder to write to.

    Raises:
        ConfigurationError: if the target does not fit the run's network, the run has no classifier to replace, or an
            override would change the training of the run itself.
        RunError: if the run has no readable checkpoint.
    """
    if wrong := [key for key in overrides if not key.startswith("transfer-") and key not in _MAY_DIFFER]:
        raise ConfigurationError(
            f"{wrong[0]}: run '{run.name}' has it already; what may differ is transfer-*, {', '.join(_MAY_DIFFER)}"
        )
    settings, hyper = parse(complete({**read_config(run), **overrides}))
    if not settings.transfer_target:
        raise ConfigurationError("transfer-target: name the dataset to transfer to")
    device = tune_process(settings.device, one_thread=False)
    check_target(settings, hyper)
    spec = _target(settings)
    network = _pretrained(run, settings, spec).to(device)
    dataset = load_dataset(_target_settings(settings))
    shape = dataset_of(settings).shape
    parts = [_examples(settings, dataset, split, shape, device) for split in (dataset.train, dataset.test)]
    model: nn.Module = network
    if settings.transfer_train == "classifier":
        body, model = body_and_classifier(network)
        parts = [Examples(features(body, part), part.y) for part in parts]
    task = spec.learned
    percent = task.figures[task.main].percent
    trained = settings.transfer_train
    result = Transferred(run.name, settings.transfer_target, trained, [], [], task.main, percent)

    def note() -> None:
        found = evaluate(model, parts[1], task)
        result.losses.append(found[LOSS])
        result.values.append(found[task.main])

    train(
        model,
        parts[0],
        settings.model_copy(
            update={
                "optimizer": "adam",
                "learning_rate": settings.transfer_learning_rate,
                "weight_decay": settings.transfer_weight_decay,
                "max_grad_norm": 0.0,
                "batch_size": settings.transfer_batch_size,
            }
        ),
        torch_generator(settings.seed, "transfer"),
        task=task,
        epochs=settings.transfer_epochs,
        after_epoch=note,
    )
    write_text(output / "transfer.json", json.dumps(asdict(result), indent=2) + "\n")
    target = settings.model_copy(update={"dataset": settings.transfer_target})
    save_model(output, network, TARGET, run.name, target, shape if shape != spec.shape else ())
    return result


def transfer_once(run: Path) -> str:
    """Transfer the features of a run with ``transfer-target``, if not yet done; return a message, or "".

    The figures become the group "target" of the run's summary; the model and curves go to its folder ``transfer``.
    """
    summary = read_summary(run)
    if not complete(read_config(run))["transfer-target"] or TARGET in summary["final"]:
        return ""
    result = transfer(run, {}, run / "transfer")
    write_transfers([result], [run.name], run / "transfer")
    summary["final"][TARGET] = {"loss": result.losses[-1], result.figure: result.values[-1]}
    write_text(run / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return f"transferred to {result.target}: {result.figure} {result.values[-1]:.3f}"


def check_target(settings: Settings, hyper: Section) -> None:
    """Check before a run that its features can be transferred to ``transfer-target`` afterwards.

    Raises:
        ConfigurationError: if the target does not fit the run's network, or the method has no features to transfer.
    """
    source, target = dataset_of(settings), _target(settings)
    method = METHODS[settings.method]
    trains = method.task == "targets"
    missing = why_not(method, "transfers to other data", hyper) if trains else "it trains none"
    if missing:
        raise ConfigurationError(f"transfer-target: method '{settings.method}' has no common features: {missing}")
    if (source.kind, len(source.shape)) != (target.kind, len(target.shape)) or (
        source.kind != "image" and source.shape != target.shape
    ):
        raise ConfigurationError(
            f"transfer-target: '{target.name}' has inputs of another kind than '{source.name}', which the run's "
            "network was made for"
        )
    if source.kind == "image" and source.shape[0] != target.shape[0]:
        raise ConfigurationError(
            f"transfer-target: '{target.name}' has {target.shape[0]} channels, but the run's network was trained on "
            f"{source.shape[0]} ('{source.name}'). Train it on pictures with as many channels: grey ones can be "
            "repeated in three, as 'mnist_rgb' does with 'mnist'."
        )
    network = network_for(source, settings, settings.seed, outputs=target.learned.outputs[0])
    classifier_shape(arrays_of(whole(network)), "transfer-target")


def _target_settings(settings: Settings) -> Settings:
    """Return the settings of the target dataset: keys that describe the columns of ``dataset`` do not apply to it."""
    general = {*DataSettings.model_fields, "data_dir", "cache_dir"}
    fields = {name: field for name, field in SourceSettings.model_fields.items() if name not in general}
    defaults = {name: field.get_default() for name, field in fields.items()}
    return settings.model_copy(update={**defaults, "dataset": settings.transfer_target})


def _target(settings: Settings) -> DatasetSpec:
    try:
        return dataset_of(_target_settings(settings))
    except ConfigurationError as error:
        raise ConfigurationError(f"transfer-target: {str(error).removeprefix('dataset: ')}") from error


def _pretrained(run: Path, settings: Settings, target: DatasetSpec) -> nn.Sequential:
    """Return the run's network with a new classifier for the classes of ``target``."""
    network = network_for(dataset_of(settings), settings, settings.seed, outputs=target.learned.outputs[0])
    arrays = whole(network)
    classifier = last_blocks(arrays, 1, "model")
    trained = read_frozen(run) | read_checkpoint(run).arrays
    set_arrays(network, {name: trained[name] for name in arrays if block_of(name) not in classifier})
    return network


@torch.no_grad()
def _examples(
    settings: Settings, dataset: Dataset, split: Split | None, shape: Sequence[int], device: torch.device
) -> Examples:
    """Return the examples of a split chosen by ``transfer-rows``; images are resized to ``shape``."""
    if split is None:
        raise ConfigurationError(f"transfer-target: '{dataset.spec.name}' has no test split")
    rows = np.arange(len(split))
    rows = rows[matching("transfer-rows", settings.transfer_rows, dataset.spec, split, rows)]
    x = to_inputs(dataset.spec, np.asarray(split.x[rows]), dataset.vocabulary)
    return Examples(resize(x, shape).to(device), torch.from_numpy(split.y[rows]).to(device))


def write_transfers(results: Sequence[Transferred], labels: Sequence[str], output: Path) -> str:
    """Write ``transfer.md`` and ``transfer.png``, the curves, to ``output``; return the table, shares in %."""
    names = dict.fromkeys(result.figure + (" (%)" if result.percent else "") for result in results)
    heading = ", ".join(names)
    lines = [f"| run | target | trained | epochs | {heading} |", "|---|---|---|---|---|"]
    figure = ShownFigure(6.4, 4.2)
    axes = figure.subplots()
    for result, label in zip(results, labels, strict=True):
        values = [100 * value for value in result.values] if result.percent else result.values
        last = f"{values[-1]:.{1 if result.percent else 3}f}"
        lines.append(f"| {label} | {result.target} | {result.trained} | {len(values)} | {last} |")
        axes.plot(range(1, len(values) + 1), values, label=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set(xlabel="epochs on the target", ylabel=f"test {heading}")
    axes.legend(frameon=False)
    write_picture(figure, output / "transfer.png")
    text = "\n".join(lines)
    write_page(output / "transfer.md", text)
    return text
