"""Predict with an exported model, or with one kept by a device; write it as ONNX, for programs without PyTorch."""

from __future__ import annotations

import csv
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from florilegium.apps.settings.configuration import defaults
from florilegium.clients.core.export import learned_by, load_model, predict, spec_of
from florilegium.common.errors import DataError, RunError
from florilegium.common.files import write_atomically
from florilegium.models.dry_run import random_inputs
from florilegium.partitions.clientdata import Examples, resize, to_inputs
from florilegium.partitions.device_data import read_device_schema, read_inputs, read_rows
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.rows import laid_out
from florilegium.partitions.sources.table_files import refuse_twins
from florilegium.partitions.sources.words import vocabulary
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.registry import CLASSIFICATION, make_task
from florilegium.tasks.task import Task

log = logging.getLogger("flwr")


def _rows(path: Path, spec: DatasetSpec) -> Examples:
    """Read a ``.npy`` file of decoded rows (n, …) and return them as inputs; all positions have targets."""
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file: {error}") from error
    rows = laid_out(spec, rows, f"{path}: rows")
    x = torch.from_numpy(rows).float() if spec.kind == "words" else to_inputs(spec, rows)  # words: already vectors
    return Examples(x, torch.zeros((len(x), *spec.learned.shape), dtype=torch.int64))


def inputs_of(inputs: Any, settings: FederationSettings) -> tuple[Examples, DatasetSpec]:
    """Return inputs for the dataset of a run, as :func:`read_inputs` does, and the dataset's description.

    Args:
        inputs: rows in the dataset's decoded form, a table of its columns, or a path to a file of rows or pictures.
        settings: the run's configuration.

    Raises:
        DataError: if the inputs do not fit the dataset.
    """
    spec = dataset_of(settings)
    words = vocabulary(settings.embeddings, settings.cache_dir, spec.shape[1]) if spec.kind == "words" else None
    if isinstance(inputs, str | Path):
        path = Path(inputs)
        return (_rows(path, spec) if path.suffix == ".npy" else read_inputs(path, spec, words)[0]), spec
    if isinstance(inputs, pd.Series):
        raise DataError("inputs: a pandas Series is a single row or column; give a DataFrame, such as frame.loc[[row]]")
    if isinstance(inputs, pd.DataFrame):
        refuse_twins(map(str, inputs.columns), "inputs: the DataFrame")
        inputs = inputs.to_dict("list")
    return read_rows(inputs, spec, words), spec


def table_of_predictions(model: torch.nn.Module, inputs: Examples, spec: DatasetSpec) -> pd.DataFrame:
    """Return what ``model`` predicts for inputs (n, …): the task's columns, such as "class" and "probability"."""
    return pd.DataFrame(_predicted(model, inputs, learned_by(model, spec)))


def _predicted(model: torch.nn.Module, inputs: Examples, task: Task) -> dict[str, list[Any]]:
    """Return the columns of predictions; of sequences at those positions alone that have targets."""
    return task.predictions_at(predict(model, inputs.x, task).numpy(), inputs.y.numpy())


def write_predictions(model_folder: Path, inputs: Path, embeddings: str = "", schema: Path | None = None) -> None:
    """Predict ``inputs`` with an exported model; write CSV to standard output.

    Each line has what the task predicts of one row, or of one picture if ``inputs`` is a folder of pictures: the class,
    in the data's own words if they are known, and its probability, or numbers. A model whose inputs are words needs the
    ``embeddings`` file it was trained with. ``schema`` is a file that names the columns of a device's data.
    """
    model, card = load_model(model_folder)
    spec, names = spec_of(model_folder, card), None
    if card.standardise == "client" and not card.scaled:
        raise RunError(
            f"{model_folder} is no client's model, and its inputs are standardised by each client's own rows: export "
            "the model of a client (`florilegium export RUN --client NAME`)"
        )
    if inputs.suffix == ".npy":
        rows = _rows(inputs, spec)
    else:
        cache = str(defaults()["cache-dir"])
        words = vocabulary(embeddings, cache, spec.shape[1]) if spec.kind == "words" and inputs.exists() else None
        rows, names = read_inputs(inputs, spec, words, None if schema is None else read_device_schema(schema))
    task = learned_by(model, spec)
    if card.labels and (labels := tuple(card.labels)) != task.targets.labels:  # those of the run's data
        task = make_task(card.task or CLASSIFICATION, replace(task.targets, labels=labels), spec.choices)
    rows = replace(rows, x=resize(rows.x, card.shape)) if card.shape else rows
    found = _predicted(model, rows, task)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture" if names else "row", *found])
    for row, *cells in zip(names or range(len(rows)), *found.values(), strict=True):
        writer.writerow([row, *(f"{cell:{task.decimals}}" if isinstance(cell, float) else cell for cell in cells)])


def add_onnx(folder: Path) -> None:
    """Write ``model.onnx``, which returns probabilities or numbers, beside the model and the card in ``folder``.

    Raises:
        RunError: if there is no readable model, or the network cannot be written as ONNX.
    """
    model, card = load_model(folder)
    spec = spec_of(folder, card)
    task = learned_by(model, spec)
    write_onnx(model, tuple(card.shape) or spec.shape, folder / "model.onnx", task, codes=spec.codes)


class _Activated(nn.Module):
    """A model followed by the task's activation, such as softmax."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, x: Tensor) -> Tensor:
        return self.task.activate(self.model(x))


def write_onnx(model: nn.Module, shape: tuple[int, ...], path: Path, task: Task, *, codes: int = 0) -> None:
    """Write a network as ONNX, with inputs (n, *shape) for any n: numbers, or int64 codes (``codes``, how many).

    The file is compared with the network on random inputs, since some layers are exported as something else.

    Raises:
        RunError: if the network cannot be exported, the packages for ONNX are missing, or the file computes something
            else than the network.
    """
    if gap := getattr(model, "onnx_gap", ""):
        raise RunError(f"this model cannot be written as ONNX: {gap}. Use `florilegium predict` with its folder")
    example = torch.zeros(2, *shape, dtype=torch.int64 if codes else torch.float32)
    whole = _Activated(model, task).eval()
    try:
        program = torch.onnx.export(
            whole, (example,), input_names=["x"], output_names=[task.activated], dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False,
        )  # fmt: skip
        assert program is not None
    except ModuleNotFoundError as error:
        raise RunError(f"ONNX needs the package {error.name}: pip install onnx onnxscript") from error
    except Exception as error:  # the exporter raises many kinds of errors
        raise RunError(f"this network cannot be written as ONNX: {str(error).splitlines()[0]}") from error
    x = random_inputs(shape, codes=codes).contiguous()
    for inputs in (x,) if codes else (x, 10 * x):
        _compare(whole, program.model_proto, inputs)
    write_atomically(path, lambda temporary: program.save(str(temporary)))


def _compare(whole: nn.Module, program: Any, x: Tensor) -> None:
    """Raise :class:`RunError` unless an ONNX program returns for inputs (n, …) what the network returns."""
    from onnx.reference import ReferenceEvaluator

    with torch.no_grad():
        expected = whole(x).numpy()
    try:
        found = np.asarray(cast(list[Any], ReferenceEvaluator(program).run(None, {"x": x.numpy()}))[0])
    except Exception as error:  # the evaluator lacks some operators, and raises many kinds of errors
        log.warning("model.onnx: it could not be compared with the network: %s: %s", type(error).__name__, error)
        return
    if found.shape != expected.shape or not np.allclose(found, expected, 1e-3, 1e-4, equal_nan=True):
        far = f"{np.abs(found - expected).max():.2g}" if found.shape == expected.shape else f"shape {found.shape}"
        raise RunError(
            f"this network cannot be written as ONNX: the file's outputs differ from the network's (by {far} for "
            "random inputs), since PyTorch's exporter does not know some layer or function as it is used. Use "
            "`florilegium predict` with its folder"
        )
