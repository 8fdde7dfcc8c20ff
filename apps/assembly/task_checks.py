"""Check that a method can learn a dataset's task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.batch_orders import EACH_ROUND
from florilegium.clients.core.settings import ClientSettings
from florilegium.common.errors import ConfigurationError
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.choices import OF_LOSS
from florilegium.tasks.task import NEEDS, PER_EXAMPLE, Task
from florilegium.tasks.weights import BALANCED

if TYPE_CHECKING:
    from torch import nn


def check_task(settings: ClientSettings, hyper: Any, task: Task) -> None:
    """Check that the task offers what the method, and privacy of examples, need.

    Raises:
        ConfigurationError: if not; names what is missing, and the methods that do without.
    """
    lacking = METHODS[settings.method].client_class().needed(hyper) - task.provides
    if lacking and METHODS[settings.method].task == "targets":
        raise ConfigurationError(
            f"method: '{settings.method}' needs {_told(lacking)}; task '{type(task).__name__}' of "
            f"'{settings.dataset}', which {task.title}, does not offer this. Methods that would do: "
            f"{', '.join(fitting(task))}"
        )
    learns = METHODS[settings.method].task
    ignores = METHODS[settings.method].client_class().ignores_loss if learns == "targets" else f"learns {learns}"
    chosen = [*task.choices.given()] if learns != "targets" else [n for n in OF_LOSS if n in task.choices.given()]
    chosen += ["weight-column"] if settings.weight_column else []
    if given := chosen if ignores else []:
        raise ConfigurationError(
            f"{given[0].replace('_', '-')}: it would have no effect with method '{settings.method}', which {ignores}; "
            "leave it out"
        )
    if learns != "targets" and settings.standardise == "client":
        raise ConfigurationError(
            f"standardise: method '{settings.method}' learns {learns} from values of all clients, which need one "
            "scale; set 'federation'"
        )
    own = {"standardise": settings.standardise == "client", "class-weights": settings.class_weights in BALANCED}
    if settings.privacy.unit == "example" and (counts := [name for name, on in own.items() if on]):
        raise ConfigurationError(
            f"{counts[0]}: what follows from all of a client's rows changes with each of them, so that examples would "
            "not be private; use numbers of a schema, or give the weights as numbers"
        )
    if settings.privacy.unit == "example" and PER_EXAMPLE not in task.provides:
        raise ConfigurationError(
            f"privacy.unit: 'example' needs {NEEDS[PER_EXAMPLE]}, and task '{type(task).__name__}' of "
            f"'{settings.dataset}' has one of a batch alone; protect clients instead, privacy.unit = 'client'"
        )


def fitting(task: Task) -> list[str]:
    """Return the suite's methods that can learn a task with their default keys."""
    return [name for name in METHODS.own if learns(name, task)]


def learns(method: str, task: Task) -> bool:
    """Return whether a method with its default keys can learn a task."""
    entry = METHODS[method]
    return entry.task == "targets" and entry.client_class().needed(entry.hyper()()) <= task.provides


def bucket_gap(settings: ClientSettings, spec: DatasetSpec) -> str:
    """Return why batches cannot be of texts of similar length, "" if they can."""
    if spec.kind != "pieces":
        return f"'{spec.name}' has no texts that a tokenizer reads"
    if settings.batch_order != EACH_ROUND:
        return f"batch-order = '{settings.batch_order}' says what the batches are"
    if settings.privacy.unit == "example" and not settings.micro_batch:
        return "private batches are Poisson samples; their parts can be of similar length, with micro-batch"
    return ""


def arithmetic_gap(settings: ClientSettings, task: Task, network: nn.Module, reason: str) -> str:
    """Return why ``micro-batch`` and ``precision`` do not go with a run, "" if they do or are not used.

    Args:
        settings: the keys.
        task: what is learned.
        network: what is trained.
        reason: why the method's loss is no mean of examples' losses that the shared training computes; "" if it is.
    """
    parts = settings.micro_batch > 0
    if not parts and settings.precision == "float32":
        return ""
    from florilegium.models.batch_norm import norms_of  # both import PyTorch
    from florilegium.privacy.booked import supported

    named = "micro-batch" if parts else "precision"
    if settings.privacy.unit == "example" and not supported(network):
        return f"{named}: not with privacy.unit = 'example', whose gradients for '{settings.model}' Opacus computes"
    if reason:
        return f"{named}: not with method '{settings.method}' ({reason})"
    if settings.vectorise != 1:
        return f"{named}: not with vectorise = {settings.vectorise}: clients that train together have neither"
    if parts and PER_EXAMPLE not in task.provides:
        return f"{named}: needs {NEEDS[PER_EXAMPLE]}, which task '{type(task).__name__}' has not"
    if parts and norms_of(network):
        return f"{named}: not with batch norm, whose statistics are those of a whole batch ('{settings.model}')"
    return ""


def _told(needs: frozenset[str]) -> str:
    return " and ".join(words for need, words in NEEDS.items() if need in needs)
