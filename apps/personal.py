"""A client's own model out of a finished run, and predictions with it."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch

from apps.client_app import SimulatedClients
from apps.methods import METHODS
from apps.settings import defaults, parse
from clients.export import load_model, predict, save_model
from clients.host import Host
from clients.worker import tune_process
from common.errors import ConfigurationError, DataError
from models.networks import build
from partitions.clientdata import to_inputs
from partitions.datasets import DatasetSpec, find_spec
from partitions.words import vocabulary
from strategies.run_folder import read_checkpoint, read_config


def export(run: Path, client_id: str, target: Path) -> Path:
    """Write the model that ``client_id`` would use after ``run`` to folder ``target``.

    The client does what it does at an evaluation: it starts from the run's last global model, or its own state, and
    personalises it. The client's data are needed for that, as in the run.

    Raises:
        ConfigurationError: if there is no such client.
        RunError: if the run has no readable checkpoint.
    """
    settings, hyper = parse(read_config(run))
    checkpoint = read_checkpoint(run)
    if checkpoint.facts["deployed"]:
        raise ConfigurationError(
            f"run '{run.name}' ran on real devices: each keeps its model in <state-dir>/{run.name}/<client-id> there"
        )
    settings = settings.model_copy(update={"runs_dir": str(run.parent)})  # the folder may have been moved
    device = tune_process(settings.device, one_thread=False)
    source = SimulatedClients(settings, device)
    known = source.clients()
    if client_id not in known:
        raise ConfigurationError(
            f"client: there is no client '{client_id}' in run '{run.name}'; its clients are 0 to {len(known) - 1}"
        )
    spec = find_spec(settings.dataset)
    model = build(settings.model, spec.shape, spec.classes, settings.seed).to(device)
    host = Host(METHODS[settings.method].client(), settings, hyper, model, source, "")
    lineage = [*checkpoint.facts["lineage"]]
    predictor = host.personal_model(
        client_id,
        checkpoint.arrays,
        {"round": checkpoint.round, "run": run.name, "lineage": lineage, "checkpoint": checkpoint.round},
    )
    return save_model(target, predictor, client_id, run.name, settings)


def _read_inputs(path: Path, spec: DatasetSpec, embeddings: str) -> torch.Tensor:
    """Return network inputs: from parquet in the dataset's schema, an image file, or a ``.npy`` of decoded rows."""
    from partitions.decode import decode_image, decode_inputs, read_parquet

    if path.suffix == ".parquet":
        cache = str(defaults()["cache-dir"])
        words = vocabulary(embeddings, cache, spec.shape[1]) if spec.kind == "words" else None
        return to_inputs(spec, decode_inputs(spec, read_parquet(path), str(path), words), words)
    if path.suffix == ".npy":
        try:
            rows = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is not a readable .npy file: {error}") from error
    elif spec.kind == "image":
        try:
            rows = decode_image(path.read_bytes(), spec.shape[0])[None]
        except OSError as error:
            raise DataError(f"{path} is not a readable image: {error}") from error
    else:
        raise DataError(f"{path}: give a .parquet in the schema of '{spec.name}', or a .npy of decoded rows")
    expected = (*spec.shape[1:], spec.shape[0]) if spec.kind == "image" else spec.shape
    if rows.shape[1:] != expected:
        raise DataError(f"{path}: rows have shape {rows.shape[1:]}, '{spec.name}' needs {expected}")
    return torch.from_numpy(rows).float() if spec.kind == "words" else to_inputs(spec, rows)  # words come as vectors


def write_predictions(model_folder: Path, inputs: Path, embeddings: str = "") -> None:
    """Predict the rows of ``inputs`` with an exported model; write CSV to standard output.

    That is the class and its probability, or the value where labels are numbers. A model of words needs the file of
    ``embeddings`` that it was trained with.
    """
    model, card = load_model(model_folder)
    spec = find_spec(card.dataset)
    probabilities = predict(model, _read_inputs(inputs, spec, embeddings))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if spec.kind == "regression":
        writer.writerow(["row", "value"])
        writer.writerows((row, f"{value:.6g}") for row, value in enumerate(probabilities[:, 0].tolist()))
        return
    writer.writerow(["row", "class", "probability"])
    best, classes = probabilities.max(dim=1)
    for row, (label, probability) in enumerate(zip(classes.tolist(), best.tolist(), strict=True)):
        writer.writerow([row, label, f"{probability:.6f}"])
