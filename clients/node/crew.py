"""Runs the clients of a message: one after the other, or as many together as key ``vectorise`` allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from torch import nn

from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.together import Company, result_of
from florilegium.clients.core.training_facts import Training
from florilegium.common.declarations import declared
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of

T = TypeVar("T")


class Crew:
    """Runs clients on one network.

    Args:
        client_class: the method's client; only clients whose training can be stacked are run together.
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        network: the network that the clients share.
    """

    def __init__(self, client_class: type, settings: ClientSettings, hyper: Any, network: nn.Module) -> None:
        self._settings, self._network = settings, network
        training = declared(client_class, Training, hyper)
        self._allowed = training is not None and training.stacked

    def carry_out(self, tasks: Sequence[Callable[[], T]], examples: Callable[[], Examples]) -> Iterator[T | Exception]:
        """Yield the result of each task, in their order, or the exception that it raised.

        Args:
            tasks: what each client has to do.
            examples: returns the training examples of one of the clients, by which ``vectorise = "auto"`` measures.
        """
        wanted = self._settings.vectorise if self._allowed and len(tasks) > 1 else 1
        if str(wanted) == "1":
            yield from map(result_of, tasks)
            return
        company = self._company
        size = self._fastest(company, examples()) if wanted == "auto" else int(wanted)
        for begin in range(0, len(tasks), size):
            yield from company.run(tasks[begin : begin + size])

    @cached_property
    def _company(self) -> Company:
        from florilegium.clients.core.stacked_evaluation import Evaluation, Features
        from florilegium.clients.core.stacked_private import request

        return Company(self._network, {"train": request, "features": Features.of, "evaluate": Evaluation.of})

    def _fastest(self, company: Company, examples: Examples) -> int:
        from florilegium.clients.core.calibration import fastest

        return fastest(company, self._settings, examples, task_of(self._settings)) if len(examples) else 1
