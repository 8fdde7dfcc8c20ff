"""PeFLL, client side (Scott's thesis, Algorithms 7 and 8): the client describes its data and receives a model for it.

Phase ``describe`` receives the embedding network η_v, and returns the descriptor v_i, the mean of φ over a batch of the
client's examples. Phase ``adapt`` receives θ_i and returns Δθ_i. Phase ``embed`` receives Δv_i, backpropagates it
through η_v on the same batch, and returns Δη_v. The batch is drawn again from the round's seed, and ``describe`` stores
η_v once per node; a client keeps no state from one round to the next.

With example privacy, the batch is Poisson-sampled and stored for ``embed``; each φ and each example's part of Δη_v is
clipped, and both sums get noise. On the same examples, both together are one release with multiplier z/√2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import EVALUATION_BATCH
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.generated import GeneratedClient
from florilegium.clients.hyper.hypernetworks import PeFLLHyper
from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.common.memo import remembered
from florilegium.models.embedding import WITHOUT_LABELS, Embedding, build_embedding
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.clipping import clip_rows
from florilegium.privacy.noise import draw, secret_generator
from florilegium.tasks.task import CLASSES

if TYPE_CHECKING:
    from florilegium.privacy.dp_sgd import Planned

DESCRIPTOR = "descriptor"
NEVER = -1e4
"""Logit of a class that must not be predicted: its probability is 0 in every precision."""


class PeFLLClient(GeneratedClient):
    """Describes its data by a vector, and uses the model that the server makes from it."""

    needs = frozenset({CLASSES})

    hyper: PeFLLHyper

    @staticmethod
    def training(hyper: PeFLLHyper) -> Training:
        """Return that examples enter by gradients; masking labels reveals a client's classes."""
        told = "pefll.mask-labels tells which classes a client has"
        return Training(told if hyper.mask_labels else "gradients", stacked=True)

    @phase
    def describe(self, arrays: Arrays, *, batch: int, size: int, follows: bool) -> Answer:
        """Return the descriptor v_i, (l,).

        Args:
            arrays: η_v.
            batch: number of examples from which it is computed; 0: all.
            size: its length l.
            follows: whether phase ``embed`` follows, for which η_v is stored.
        """
        self._check()
        if follows:
            self.state.share(arrays, "embedding")
        if self.settings.privacy.unit == "example":
            return self._described_privately(arrays, batch, size, follows=follows)
        examples = self._batch(batch)
        total = torch.zeros(size, device=examples.y.device)
        with torch.no_grad():
            for rows in torch.arange(len(examples), device=examples.y.device).split(EVALUATION_BATCH):
                part = Examples(examples.x[rows], examples.y[rows])
                total += len(part) * self._descriptor(arrays, part, size)
        v = total / len(examples)
        return Answer({DESCRIPTOR: v.cpu().numpy()}, len(examples))

    @phase
    def embed(self, arrays: Arrays, *, batch: int, size: int) -> Answer:
        """Backpropagate Δv_i through the embedding network; return Δη_v."""
        embedding = self.state.load_shared("embedding", this_round=True)
        if embedding is None:
            raise RunError(f"the embedding network of round {self.round} is gone from this node's state folder")
        Δv = torch.from_numpy(arrays[DESCRIPTOR]).to(self.data.train.y.device)
        if self.settings.privacy.unit == "example":
            return self._embedded_privately(embedding, Δv, batch, size)
        examples = self._batch(batch)
        v = self._descriptor(embedding, examples, size)
        parameters = dict(self._embedding(size).named_parameters())
        Δη = torch.autograd.grad(v, list(parameters.values()), Δv)
        return Answer({n: change.cpu().numpy() for n, change in zip(parameters, Δη, strict=True)}, len(examples))

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received model; with ``pefll.mask-labels``, only on classes that the client has."""
        if self.hyper.mask_labels and self.data.labeled:
            arrays = self._masked(arrays)
        return super().test(arrays)

    def planned(self, trainings: float, tests: float) -> tuple[Planned, Planned]:
        """Return the client's planned releases: those of training, descriptors with their Δη_v, and those for tests."""
        planned, fixed = super().planned(trainings, tests)
        described = (1 / math.sqrt(2), self._rate(self.hyper.descriptor_batch), math.ceil(trainings))
        return (*planned, described, (1.0, self._rate(self.hyper.test_batch), math.ceil(tests))), fixed

    # --------------------------------------------------------------------------------------- details

    def _embedding(self, size: int) -> Embedding:
        """Return the embedding network for descriptors of ``size`` numbers."""
        spec, device = dataset_of(self.settings), self.data.train.y.device
        return _embedding(self.hyper.embedding, spec.shape, spec.classes, size, self.settings.seed).to(device)

    def _described_privately(self, arrays: Arrays, batch: int, size: int, *, follows: bool) -> Answer:
        """Return the descriptor with example privacy: the noisy mean of clipped φ over Poisson-sampled examples."""
        n, rate, p = len(self.data.train), self._rate(batch), self.settings.privacy
        z, rng = self.noise_multiplier(), secret_generator()
        try:
            self.pay(z / math.sqrt(2) if follows else z, rate)
        except BudgetSpentError:
            last = self.state.load("descriptor")
            if follows or last is None:
                raise
            return Answer(dict(last), n)  # the last descriptor is already paid for
        rows = torch.from_numpy((rng.random(n) < rate).nonzero()[0])
        if follows:
            self.state.save({"rows": rows.numpy(), "round": np.array([self.round])}, "batch")
        embedding = self._embedding(size)
        set_arrays(embedding, arrays)
        with torch.no_grad():
            φ = embedding(*self._rows(rows)).cpu().numpy().astype(np.float64)
        noise = draw(rng, "gaussian", z * p.clip_norm, (size,)) if z else 0.0
        v = (clip_rows(φ, p.clip_norm).sum(axis=0) + noise) / (rate * n)
        descriptor = {DESCRIPTOR: v.astype(np.float32)}
        self.state.save(descriptor, "descriptor")
        return Answer(dict(descriptor), n)

    def _embedded_privately(self, arrays: Arrays, Δv: Tensor, batch: int, size: int) -> Answer:
        """Return Δη_v with example privacy: the noisy mean of the clipped parts of the examples in ``describe``."""
        from florilegium.privacy.dp_sgd import PrivateGradients

        n, rate, p = len(self.data.train), self._rate(batch), self.settings.privacy
        kept = self.state.load("batch")
        if kept is None or int(kept["round"][0]) != self.round:
            raise RunError(f"no descriptor of round {self.round} is waiting to be embedded")
        self.state.save({**kept, "round": np.array([-1])}, "batch")  # paid for one release only
        embedding = self._embedding(size)
        set_arrays(embedding, arrays)
        rows = torch.from_numpy(kept["rows"])
        # ``describe`` has paid for this release too, which has the same noise multiplier on the same examples.
        private = PrivateGradients(embedding.network, self.noise_multiplier(), p.clip_norm, rate, n)
        try:
            private.forget()
            private.backward(lambda chosen: private.model(embedding.join(*self._rows(chosen))) @ Δv, rows)
            private.protect()
            Δη = {name: p.grad.cpu().numpy().copy() for name, p in embedding.named_parameters() if p.grad is not None}
        finally:
            private.end()
        return Answer(Δη, n)

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and classes of the training examples at ``rows``."""
        examples = self.data.train.rows(rows.to(self.data.train.y.device))
        return examples.x, examples.y

    def _rate(self, batch: int) -> float:
        """Return the probability that an example is sampled for a descriptor of ``batch`` examples; 0: all of them."""
        return min(1.0, batch / len(self.data.train)) if batch else 1.0

    def _check(self) -> None:
        """Raise :class:`RunError` if the client has no examples, or lacks labels that the embedding needs."""
        if self.hyper.embedding not in WITHOUT_LABELS and not self.data.labeled:
            raise RunError(
                f"{self.settings.method}.embedding: '{self.hyper.embedding}' needs labels, which this client does not "
                "have"
            )
        if not len(self.data.train):
            raise RunError("this client has no examples to make a descriptor of")

    def _batch(self, size: int) -> Examples:
        """Return the ``size`` examples for the descriptor, always the same within a round; 0: all."""
        examples = self.data.train
        if not 0 < size < len(examples):
            return examples
        rows = torch.randperm(len(examples), generator=self.generator(phase="describe"))[:size].to(examples.y.device)
        return Examples(examples.x[rows], examples.y[rows])

    def _descriptor(self, arrays: Arrays, examples: Examples, size: int) -> Tensor:
        """Return v = 1/|B| Σ φ(x, y; η_v), (l,)."""
        embedding = self._embedding(size)
        set_arrays(embedding, arrays)
        result: Tensor = embedding(examples.x, examples.y).mean(dim=0)
        return result

    def _masked(self, arrays: Arrays) -> Arrays:
        """Return ``arrays`` with a last layer that never predicts a class the client has no training example of."""
        present = np.unique(self.data.train.y.cpu().numpy())
        weight, bias = list(arrays)[-2:]
        absent = np.setdiff1d(np.arange(len(arrays[bias])), present)
        changed = {weight: arrays[weight].copy(), bias: arrays[bias].copy()}
        changed[weight][absent], changed[bias][absent] = 0, NEVER
        return arrays | changed


@remembered(2)
def _embedding(kind: str, shape: tuple[int, ...], classes: int, size: int, seed: int) -> Embedding:
    """Return the embedding network that all clients of the process share; every client overwrites its contents."""
    return build_embedding(kind, shape, classes, size, seed)
