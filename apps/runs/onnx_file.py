"""Write an exported model as ONNX, for programs without PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from florilegium.clients.core.export import learned_by, load_model, spec_of
from florilegium.common.errors import RunError
from florilegium.common.files import write_atomically
from florilegium.tasks.task import Task


def add_onnx(folder: Path) -> None:
    """Write ``model.onnx``, which returns probabilities or numbers, beside the model and the card in ``folder``.

    Raises:
        RunError: if there is no readable model, or the network cannot be written as ONNX.
    """
    model, card = load_model(folder)
    spec = spec_of(folder, card)
    task = learned_by(model, spec)
    write_onnx(model, tuple(card.shape) or spec.shape, folder / "model.onnx", task, codes=spec.coded)


class _Activated(nn.Module):
    """A model followed by the task's activation, such as softmax."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, x: Tensor) -> Tensor:
        return self.task.activate(self.model(x))


def write_onnx(model: nn.Module, shape: tuple[int, ...], path: Path, task: Task, *, codes: bool = False) -> None:
    """Write a network as ONNX, with inputs (n, *shape) for any n: numbers, or int64 character codes (``codes``).

    Raises:
        RunError: if the network cannot be exported, or the packages for ONNX are missing.
    """
    if gap := getattr(model, "onnx_gap", ""):
        raise RunError(f"this model cannot be written as ONNX: {gap}. Use `florilegium predict` with its folder")
    example = torch.zeros(2, *shape, dtype=torch.int64 if codes else torch.float32)
    try:
        program = torch.onnx.export(
            _Activated(model, task).eval(), (example,), input_names=["x"], output_names=[task.activated], dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False,
        )  # fmt: skip
        assert program is not None
    except ModuleNotFoundError as error:
        raise RunError(f"ONNX needs the package {error.name}: pip install onnx onnxscript") from error
    except Exception as error:  # the exporter raises many kinds of errors
        raise RunError(f"this network cannot be written as ONNX: {str(error).splitlines()[0]}") from error
    write_atomically(path, lambda temporary: program.save(str(temporary)))
