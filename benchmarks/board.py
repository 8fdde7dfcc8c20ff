"""Every method's round against its own arithmetic in a plain loop.

A round is carried out once with hooks that note each outermost call of a module: the module, its inputs and whether
gradients are computed. The plain loop repeats these calls, each with its backward pass and an SGD step where the method
computed gradients; logits are given a cross-entropy loss. What else a method computes outside of modules is not part of
this loop; for some of the methods that compute much there, it is written by hand instead (``plain_methods.py``).
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from benchmarks import plain_methods
from benchmarks.plain_methods import BATCH, CLASSES, CLIENTS, IMAGES, RATE
from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.engines.one_process import one_thread, run_here
from florilegium.apps.settings.configuration import complete
from florilegium.common.memory import keep_freed
from florilegium.common.settings import Value
from florilegium.tasks.registry import CLASSIFICATION, make_task
from florilegium.tasks.task import Targets

KEYS: dict[str, Value] = {
    "dataset": "benchmarks.vectorised:pictures", "partitioner": "classes", "classes-per-client": 5, "model": "lenet",
    "num-clients": CLIENTS, "samples-per-client": IMAGES, "participation": 1.0, "local-epochs": 1, "batch-size": BATCH,
    "learning-rate": RATE, "evaluate-every": 0, "evaluate-clients": 1, "rounds": 4,
}  # fmt: skip
"""Five clients with 400 training images of CIFAR-10's size each, all in every round, one epoch."""
OWN: Mapping[str, dict[str, Value]] = {
    "fedala": {"fedala.first-epochs": 1},  # of learning W, as in every later round
    "fedbn": {"model": "cnn-bn"},
    "fedl2p": {"model": "cnn-bn", "validation-fraction": 0.2, "finetune-epochs": 1, "fedl2p.pretraining-rounds": 1},
    "l2p": {"model": "cnn-bn", "validation-fraction": 0.2, "finetune-epochs": 1, "fedl2p.pretraining-rounds": 1},
    "ppfe": {"ppfe.stage-rounds": "1,1,1,1"},
}
"""What a method needs besides the common keys."""


def methods() -> list[str]:
    """Return the methods that are measured: all that learn from classes."""
    return fitting(make_task(CLASSIFICATION, Targets(("label",), 10)))


@dataclass
class _Recorder:
    """Notes the calls of modules in round 2; a :class:`florilegium.strategies.folder.run_folder.Watcher` of a run.

    Attributes:
        calls: of each call the module's and the inputs' place in ``modules`` and ``inputs``, and whether gradients of
            its parameters are computed.
    """

    interrupted: bool = False
    modules: dict[int, nn.Module] = field(default_factory=dict)
    inputs: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    calls: list[tuple[int, tuple[Any, ...], bool]] = field(default_factory=list)
    _alive: list[nn.Module] = field(default_factory=list)  # so that no later module gets the id of one that is gone
    _round: int = 1
    _depth: int = 0

    def progressed(self, status: Mapping[str, Any]) -> None:
        """Do nothing."""

    def recorded(self, line: Mapping[str, Any]) -> bool:
        """Begin the next round."""
        self._round = int(line["round"]) + 1
        return False

    def before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note a call that no other module makes."""
        self._depth += 1
        if self._depth > 1 or self._round != 2:
            return
        shapes = tuple(tuple(each.shape) for each in inputs if isinstance(each, Tensor))
        if id(module) not in self.modules:
            own = {id(p): p.detach().clone().requires_grad_(p.requires_grad) for p in module.parameters()}
            self.modules[id(module)] = copy.deepcopy(module, own)  # parameters that are computed cannot be copied
            self._alive.append(module)
        place = (id(module), shapes)
        if place not in self.inputs:
            self.inputs[place] = tuple(each.detach().clone() if isinstance(each, Tensor) else each for each in inputs)
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())
        self.calls.append((id(module), place, learns))

    def after(self, *_: object) -> None:
        """Leave a call."""
        self._depth -= 1


@contextmanager
def _hooked(recorder: _Recorder) -> Iterator[None]:
    handles = [
        register_module_forward_pre_hook(recorder.before),
        register_module_forward_hook(recorder.after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _config(method: str, folder: str, name: str) -> dict[str, Value]:
    return complete({**KEYS, **OWN.get(method, {}), "method": method, "runs-dir": folder, "run-name": name})


class _Clock:
    """Notes the processor's time at the end of each round; a ``Watcher`` of a run."""

    interrupted = False

    def __init__(self) -> None:
        self._ends: list[float] = []

    def progressed(self, status: Mapping[str, Any]) -> None:
        """Do nothing."""

    def recorded(self, line: Mapping[str, Any]) -> bool:
        """Note the time."""
        self._ends.append(time.process_time())
        return False

    @property
    def second(self) -> float:
        """The seconds of the second round."""
        return self._ends[1] - self._ends[0]


def measure(method: str, repeats: int = 5) -> tuple[float, float]:
    """Return the processor seconds of a method's round, and those of its arithmetic in a plain loop.

    Processor time depends little on what else the machine does; each uses one core.
    """
    keep_freed()  # as a worker does
    rounds, loops = [], []
    with tempfile.TemporaryDirectory() as folder:
        loop = plain_methods.ROUNDS.get(method) or _recorded(method, Path(folder) / "hooked")
        for repeat in range(repeats):
            clock = _Clock()
            run_here(_config(method, folder, str(repeat)), Path(folder) / str(repeat), clock)
            rounds.append(clock.second)
            with one_thread():
                loops.append(loop())
    return float(np.median(rounds)), float(np.median(loops))


def _recorded(method: str, folder: Path) -> Callable[[], float]:
    """Return a function that repeats the calls of modules in a round, and returns their seconds."""
    recorder = _Recorder()
    with _hooked(recorder):
        run_here(_config(method, str(folder.parent), folder.name), folder, recorder)
    return lambda: _repeated(recorder)


def _repeated(recorder: _Recorder) -> float:
    """Return the seconds that the recorded calls take."""
    for module in recorder.modules.values():
        module.train()
    begun = time.process_time()
    for place, inputs, learns in recorder.calls:
        module = recorder.modules[place]
        with torch.set_grad_enabled(learns):
            result = module(*recorder.inputs[inputs])
        if learns:
            parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
            _total(result).backward()
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            with torch.no_grad():
                moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
                torch._foreach_add_(moved, gradients, alpha=-1e-12)
            for parameter in parameters:
                parameter.grad = None
    return time.process_time() - begun


def _total(result: Any) -> Tensor:
    """Return the cross-entropy of logits, and the sum of everything else that a module returns."""
    if isinstance(result, Tensor):
        if result.shape[1:] == (CLASSES,):
            return cross_entropy(result, torch.zeros(len(result), dtype=torch.int64))
        return result.sum()
    if isinstance(result, Distribution):
        return result.rsample().sum()
    values = result.values() if isinstance(result, Mapping) else result
    total: Tensor = sum((_total(each) for each in values), torch.zeros(()))
    return total
