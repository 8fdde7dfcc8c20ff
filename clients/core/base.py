"""The base of every method's client: a NumPyClient that trains, evaluates, personalises and keeps state.

A method overrides :meth:`BaseClient.gradient_hook` for an extra term in the loss, :meth:`BaseClient.train` or
:meth:`BaseClient.personalise` for another procedure, or adds phases of its own with
:func:`florilegium.clients.core.phases.phase`. A client object serves one request: it knows its round and phase.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.clients.attacks.registry import attack_of
from florilegium.clients.core.batch_orders import EACH_ROUND
from florilegium.clients.core.kept import Kept
from florilegium.clients.core.order import Order, checked
from florilegium.clients.core.phases import ContractError, check_overrides, contracts_of, phase
from florilegium.clients.core.reports import ENDINGS, SUCCESS, Reports, measured, named
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.training import (
    EVALUATION_BATCH,
    GradientHook,
    Group,
    Objective,
    evaluate,
    features,
    in_batches,
    least_batch,
    train,
)
from florilegium.clients.core.wire import BESIDE, Work, of_network
from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.common.settings import Section
from florilegium.models.batch_norm import BatchStatistics, give, measure, norms_of, recompute
from florilegium.models.parameters import Arrays, arrays_of, buffers_of, exchanged, get_arrays, part, set_arrays
from florilegium.partitions.clientdata import ClientData, Examples
from florilegium.partitions.loading import task_of
from florilegium.privacy.allowance import Allowance
from florilegium.privacy.ledger import SPENT
from florilegium.privacy.noise import draw, secret_generator
from florilegium.privacy.steps import PrivateSteps
from florilegium.tasks.task import Task

if TYPE_CHECKING:
    from florilegium.privacy.dp_sgd import Account, Planned


@dataclass(frozen=True)
class Answer:
    """What a client returns from a phase.

    Attributes:
        arrays: named arrays, in the form that the request's ``reduce`` expects.
        num_examples: number of examples that the result was computed from.
        metrics: numbers about this client, by name.
    """

    arrays: Arrays
    num_examples: int
    metrics: dict[str, float] = field(default_factory=dict)


ACCOUNT = "privacy.json"
"""File in a client's state folder that records the privacy cost of its training."""
SUM_MULTIPLIER = 10.0
"""Noise multiplier of released sums that are no gradients; four such sums cost ε ≈ 0.9 at δ = 1e-5."""


class BaseClient(NumPyClient):
    """One client: its data, its durable state, and the network that all clients of the process share.

    Args:
        client_id: its name, which also seeds its random draws.
        data: its examples.
        model: the network, shared by all clients of the process; its contents are overwritten by every client.
        initial: the arrays θ₀ that the network was built with, the same on every client of the run.
        state: its durable arrays.
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        work: the round and the run of the request that this client serves.

    Attributes:
        round: number of the round.
        phase: name of the phase that is carried out; "" before :meth:`perform`.
        predictor: the network that the client predicts with after the phase ``test``: ``model``, or another.
        allowance: the total privacy cost that the device's owner allows over all runs; None: any.
        capacity: the share of each layer's channels that the client's node can hold, in (0, 1].
        kept: what the process keeps of its clients' examples between requests.
        gradient_norm: norm of the gradient of the last step of :meth:`descend`; None without one, or if it is private.
    """

    uses_finetuning: ClassVar[Literal["option", "always", "never"]] = "option"
    """Whether ``finetune-epochs`` is optional for the method, a part of it, or without effect."""
    augments: ClassVar[bool] = True
    """Whether the method trains by :meth:`descend`, which applies ``augment``; otherwise that key is refused."""
    needs_blocks: ClassVar[bool] = False
    """Whether the method cuts the network into body and head, so that a network of a single block is refused."""
    needs_bias: ClassVar[bool] = False
    """Whether the method changes the bias of the last layer, so that a network without one is refused."""
    by_column: ClassVar[bool] = False
    """Whether a device that lacks columns of the table takes part; the method says what it does without them."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What the method needs of a task, of :data:`florilegium.tasks.task.NEEDS`."""
    ignores_loss: ClassVar[str] = ""
    """Why keys of the loss (``loss``, ``class-weights``, ``weight-column``) have no effect, in a main clause; "": they
    have."""
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    """Ends of the names, regular expressions, under which the phases report the task's numbers; a subclass names only
    what it adds."""
    reports: ClassVar[Reports] = {}
    """Names and ranges of further numbers that the phases report; a subclass names only what it adds."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def __init__(
        self,
        client_id: str,
        data: ClientData,
        model: nn.Module,
        initial: Arrays,
        state: ClientState,
        settings: ClientSettings,
        hyper: Section,
        work: Work,
    ) -> None:
        self.client_id = client_id
        self.data = data
        self.model = model
        self.initial = initial
        self.state = state
        self.settings = settings
        self.hyper = hyper
        self.round = work.round
        self.phase = ""
        self.predictor: nn.Module = model
        self.gradient_norm: float | None = None
        self.allowance: Allowance | None = None
        self.capacity = 1.0
        self.kept = Kept(0)
        self._work = work
        self._fixed_norms = False

    @classmethod
    def finetuning_advice(cls, epochs: int) -> str:
        """Return a warning if ``finetune-epochs`` = ``epochs`` does not suit the method, "" if it does."""
        if cls.uses_finetuning == "always" and not epochs:
            return "finetune-epochs is 0, but what clients receive is meant to be tuned before a test"
        if cls.uses_finetuning == "never" and epochs:
            return f"finetune-epochs is {epochs}, but has no effect: the method does not tune so before a test"
        return ""

    @classmethod
    def own_unit(cls, hyper: Any) -> str:
        """Return the unit that noise of the clients protects, where ``privacy.unit`` is "none"; "none": no noise."""
        return "none"

    @classmethod
    def own_start(cls, hyper: Any) -> str:
        """Return which parts of clients' models start from the run's seed even with ``init``, "" if none do."""
        return ""

    @classmethod
    def needed(cls, hyper: Any) -> frozenset[str]:
        """Return what the method needs of a task with these hyper-parameters; by default :attr:`needs`."""
        return cls.needs

    @classmethod
    def reportable(cls, hyper: Any, task: Task) -> list[str]:
        """Return the names of all numbers that a client may report in a run.

        With secure aggregation every client sends a number for each of these, or that it has none, since sums need the
        same names from all. By default: the task's, and those in :attr:`reports`; a class with patterns adds what these
        mean.
        """
        return named(cls, task)

    # ------------------------------------------------------------------ what the host and Flower call

    def perform(self, name: str, arrays: Arrays, arguments: Mapping[str, Any]) -> Answer:
        """Carry out phase ``name`` on named ``arrays``.

        Raises:
            RunError: if this method's client has no such phase, or ``arguments`` do not fit the phase's signature.
        """
        contracts = contracts_of(type(self))
        if name not in contracts:
            raise RunError(
                f"method '{self.settings.method}' has no phase '{name}'. Known: {', '.join(sorted(contracts))}."
            )
        try:
            read = contracts[name].read(arguments)
        except ContractError as error:
            raise RunError(f"method '{self.settings.method}': {error}") from error
        self.phase = name
        # Layers that draw in a phase, whatever it does, draw from a stream of the client's own.
        with torch_draws(self.settings.seed, "client", self.client_id, self.round, name, "layers"):
            answer: Answer = getattr(self, name)(arrays, **read)
            if name == "test" and len(self.data.validation):
                found = evaluate(self.predictor, self.data.validation, self.task)
                answer.metrics.update({f"validation_{name}": found[name] for name in measured(self.task)})
            if name == "test":
                answer.metrics.update(self._attacked())
        if self.settings.privacy.unit == "example":
            answer.metrics["epsilon"] = self.account.epsilon()
        return answer

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train on ``parameters`` (the network's arrays in order), as any NumPyClient does."""
        answer = self.perform("train", self._named(parameters), self._plain("train", config))
        return list(answer.arrays.values()), answer.num_examples, dict(answer.metrics)

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Evaluate ``parameters`` on the client's test examples, as any NumPyClient does."""
        answer = self.perform("test", self._named(parameters), self._plain("test", config))
        return answer.metrics["loss"], answer.num_examples, dict(answer.metrics)

    def _plain(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Set the round from a stock strategy's configuration; return its entries that phase ``name`` accepts."""
        self.round = int(config.get("server-round", config.get("round", self.round)))
        return {key: value for key, value in config.items() if key in contracts_of(type(self))[name].arguments}

    def _named(self, parameters: list[NDArray[Any]]) -> Arrays:
        return dict(zip(exchanged(self.model), parameters, strict=True))

    # ---------------------------------------------------------------------------------------- phases

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model on the client's data; return the trained arrays and the mean loss."""
        set_arrays(self.model, arrays)
        loss = self.local_training()
        self.model.zero_grad()  # a large network has no room for gradients beside the arrays that are returned
        return Answer(get_arrays(self.model), len(self.data.train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received model, and the personal model made from it, on the client's test examples.

        Metrics: loss and figures of the model that the client predicts with; with the ending ``_global`` those of the
        received model, if the two differ.
        """
        set_arrays(self.model, arrays)
        metrics = before = evaluate(self.predictor, self.data.test, self.task)
        reached = {f"{name}_global": share for name, share in self._attacked().items()}
        if self.personalise():
            metrics = self.compared(evaluate(self.predictor, self.data.test, self.task), before) | reached
        return Answer({}, len(self.data.test), metrics)

    @phase
    def recompute(self, arrays: Arrays) -> Answer:
        """Recompute the buffers of the received model by one pass over the training examples, and return them.

        Raises:
            RunError: if batch norm needs more examples in a batch than there are.
        """
        set_arrays(self.model, arrays)
        examples, least = self.data.train, least_batch(self.model, self.data.train)
        if len(examples) < least:
            raise RunError(f"batch norm needs at least {least} training examples, and it has {len(examples)}")
        rows = in_batches(torch.arange(len(examples), device=examples.y.device), self.settings.batch_size, least)
        recompute(self.model, (examples.x[batch] for batch in rows))
        return Answer(arrays_of(buffers_of(self.model)), len(examples))

    # ----------------------------------------------------------------------------------------- hooks

    def local_training(self) -> float:
        """Train the received model, already in ``self.model``, in place; return the mean loss."""
        return self.descend(gradient_hook=self.gradient_hook())

    def personalise(self) -> bool:
        """Make the client's personal model from the received one in ``self.model``; return whether they differ.

        The personal model is ``self.model``, changed in place, or another network set as ``self.predictor``. By
        default it is fine-tuned for ``finetune-epochs`` epochs if the client has labels.
        """
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            self.descend(epochs=epochs)
        return True

    def gradient_hook(self) -> GradientHook | None:
        """Return a function that changes the gradients before each training step, or None.

        Called once per training, when ``self.model`` holds the received model.
        """
        return None

    # ----------------------------------------------------------------------------------------- tools

    def receive(self, arrays: Arrays) -> Arrays:
        """Load the model's arrays into the network; return the arrays sent beside it, names without ``BESIDE``.

        Raises:
            RunError: if no arrays were sent beside the model.
        """
        own = part(arrays, BESIDE)
        self.expect_own_strategy(bool(own))
        set_arrays(self.model, of_network(arrays))
        return own

    def expect_own_strategy(self, came: bool) -> None:
        """Check that the request was sent by the method's own strategy.

        Args:
            came: whether the request contains what only that strategy sends.

        Raises:
            RunError: if it does not; stock strategies send only a model.
        """
        if not came:
            raise RunError(f"method '{self.settings.method}' needs its own strategy: only a model was received")

    def generator(self, *purpose: str, phase: str = "") -> torch.Generator:
        """Return this client's random generator for this round, this phase and one ``purpose`` in it.

        If ``phase`` names another phase, the generator repeats that phase's draws.
        """
        named = (phase or self.phase, *purpose)
        return torch_generator(self.settings.seed, "client", self.client_id, self.round, *named)

    @contextmanager
    def finetuning(self) -> Iterator[None]:
        """Context for fine-tuning: batch norm works as ``finetune-bn`` says, here and in later predictions."""
        kind = self.settings.finetune_bn
        if kind == "client":
            give(self.model, measure(self.model, norms_of(self.model), self.data.train.x, EVALUATION_BATCH))
        self._fixed_norms = kind in ("client", "global")
        yield
        self._fixed_norms = False
        if kind == "batch":
            self.predictor = BatchStatistics(self.predictor)

    @cached_property
    def task(self) -> Task:
        """What is learned."""
        return task_of(self.settings)

    def loss(self, outputs: Tensor, rows: Tensor | None = None, examples: Examples | None = None) -> Tensor:
        """Return the mean loss of outputs for training examples, weighted if these have weights; differentiable.

        Args:
            outputs: the outputs for ``rows``, (b, *outputs).
            rows: the rows of the examples; None: all.
            examples: the examples; None: the training examples.
        """
        of = examples or self.data.train
        chosen: Tensor | slice = slice(None) if rows is None else rows
        return self.task.loss(outputs, of.y[chosen], None if of.weights is None else of.weights[chosen])

    def compared(self, after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a test: of the client's model (``after``), and of the received one (``before``)."""
        return {**after, **{f"{name}_global": before[name] for name in measured(self.task)}}

    def decay(self) -> float:
        """Return the factor that multiplies the learning rates in this round."""
        return self.settings.decay(self.round)

    def descend(
        self,
        *purpose: str,
        model: nn.Module | None = None,
        examples: Examples | None = None,
        epochs: int | None = None,
        gradient_hook: GradientHook | None = None,
        groups: Sequence[Group] | None = None,
        weights: Tensor | None = None,
        objective: Objective | None = None,
        least: int | None = None,
    ) -> float:
        """Train ``self.model`` on the client's training examples, or those given; return the mean loss.

        ``purpose`` names the training if a phase has several. The other arguments are those of
        :func:`florilegium.clients.core.training.train`.
        """
        chosen = self.data.train if examples is None else examples
        private = None
        if self.settings.privacy.unit == "example":
            try:
                private = self._private_steps(chosen, epochs)
            except BudgetSpentError:
                if self.phase != "test":
                    raise
                return 0.0  # the client is tested with its model as it is
        continued = epochs is None and self.settings.batch_order != EACH_ROUND
        order = self._order(len(chosen), *purpose) if continued else None
        loss, self.gradient_norm = train(
            self.model if model is None else model,
            chosen,
            self.settings,
            self.generator(*purpose),
            task=self.task,
            epochs=epochs,
            gradient_hook=gradient_hook,
            groups=groups,
            weights=weights,
            objective=objective,
            decay=self.decay(),
            fixed_norms=self._fixed_norms,
            least=least,
            private=private,
            order=order,
        )
        if order is not None:
            self.state.save({"place": np.array([order.number, order.used])}, self._order_part(*purpose))
        return loss

    def _order(self, count: int, *purpose: str) -> Order:
        """Return the order of batches of a training on ``count`` examples, at the place where the last one stopped."""
        s, client = self.settings, self.client_id
        kept = self.state.load(self._order_part(*purpose))
        number, used = (0, 0) if kept is None else map(int, kept["place"])
        return Order(lambda number: checked(s.batch_order, s.seed, client, count, number), number, used)

    def _order_part(self, *purpose: str) -> str:
        """Return the part of the client's state that has a training's place in the order of batches."""
        return "".join(filter(str.isalnum, f"order{self.phase}{''.join(purpose)}"))

    @property
    def account(self) -> Account:
        """The privacy cost of this client's training so far in this run."""
        from florilegium.privacy.dp_sgd import Account

        return Account(self.state.own.file(ACCOUNT), self.settings.privacy.delta)

    def _private_steps(self, examples: Examples, epochs: int | None) -> PrivateSteps:
        """Record the privacy cost of a training; return its steps.

        Raises:
            BudgetSpentError: if the client's remaining budget does not suffice.
        """
        s, p = self.settings, self.settings.privacy
        size = len(examples)
        rate = min(1.0, s.batch_size / size)
        steps = self.steps(epochs)
        z = self.noise_multiplier()
        self.pay(z, rate, steps)
        return PrivateSteps(z, p.clip_norm, rate, size, ghost=p.gradients == "ghost")

    def _attacked(self) -> dict[str, float]:
        """Return the share of test examples for which the model predicts what attackers want; {} without a goal."""
        s = self.settings
        if s.attack == "none":
            return {}
        goal = attack_of(s.attack, s.attack_keys).probed(self.data.test)
        if goal is None or not len(goal):
            return {}
        return {SUCCESS: float((features(self.predictor, goal).argmax(dim=1) == goal.y).double().mean())}

    def noise_multiplier(self) -> float:
        """Return the noise multiplier z: the configured one, or the one with which planned releases cost the budget."""
        from florilegium.privacy.dp_sgd import multiplier_for

        p = self.settings.privacy
        if not p.epsilon:
            return p.noise_multiplier
        if self._work.trainings is None or self._work.tests is None:
            raise RunError("privacy.epsilon is planned by this app's own strategies; set privacy.noise-multiplier")
        planned, fixed = self.planned(self._work.trainings, self._work.tests)
        return multiplier_for(p.epsilon, p.delta, planned, fixed)

    def planned(self, trainings: float, tests: float) -> tuple[Planned, Planned]:
        """Return the client's planned releases in a run: those with noise proportional to z, those with fixed noise.

        Args:
            trainings: number of rounds in which the client is expected to train.
            tests: number of times it is tested.
        """
        s, size = self.settings, len(self.data.train)
        steps = trainings * self.steps_a_round() + tests * self.steps_a_test()
        return ((1.0, min(1.0, s.batch_size / size), max(1, math.ceil(steps))),), ()

    def pay(self, multiplier: float, rate: float, times: int = 1) -> None:
        """Record the privacy cost of releases before they are made.

        Args:
            multiplier: their noise multiplier; 0: no noise, nothing is recorded.
            rate: sampling rate, the probability that an example takes part.
            times: number of releases.

        Raises:
            BudgetSpentError: if the client's remaining budget does not suffice, or what the device's owner allows.
        """
        p, account = self.settings.privacy, self.account
        if p.epsilon and account.epsilon((multiplier, rate, times)) > p.epsilon:
            raise BudgetSpentError(
                f"{SPENT}: ε = {account.epsilon():.3g} of {p.epsilon:g}, and {times} more steps would exceed it"
            )
        if self.allowance is not None:
            self.allowance.pay(multiplier, rate, times)
        if multiplier:
            account.add(multiplier, rate, times)

    def released(self, total: float) -> float:
        """Return ``total``, a sum to which each example adds between 0 and 1, with noise if examples are private."""
        if self.settings.privacy.unit != "example":
            return total
        self.pay(SUM_MULTIPLIER, 1.0)
        return total + float(draw(secret_generator(), "gaussian", SUM_MULTIPLIER, ()))

    def steps(self, epochs: int | None = None) -> int:
        """Return the number of steps that :meth:`descend` takes on all training examples with these ``epochs``."""
        return self.settings.steps(len(self.data.train), epochs)

    def steps_a_round(self) -> int:
        """Return the number of training steps per round."""
        return self.steps()

    def steps_a_test(self) -> int:
        """Return the number of training steps before a test."""
        return self.steps(self.settings.finetune_epochs) if self.settings.finetune_epochs else 0
