"""FLowDUP, client side (algorithm 2): train the hypernetwork h that makes a model from unlabeled inputs.

Receives and returns ψ: the parameters of h and the centre ψ_r. Every batch is split into random halves: v = h(X) is
computed from one; the loss of the model θ₀ + Pv is computed on the other, if the client has labels. All clients
penalise the distance between v and ψ_r.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.stacked_examples import form_for
from florilegium.clients.core.stacked_objectives import Batch, StackedObjective, losses_together
from florilegium.clients.core.training import EVALUATION_BATCH, Group, least_batch
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.subspace import SubspaceClient
from florilegium.clients.hyper.subspace import FLowDUPHyper
from florilegium.common.errors import RunError
from florilegium.common.memo import remembered
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.set_hypernetwork import SetHypernetwork, build_set_hypernetwork
from florilegium.partitions.loading import dataset_of


class FLowDUPClient(SubspaceClient):
    """Makes its own model by one forward pass of h over its inputs."""

    training = Training(stacked=True)
    hyper: FLowDUPHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train ψ on ℒ + λΩ; return the new ψ."""
        h = self._received(arrays)
        trained = [p for name, p in h.named_parameters() if name != "center" or self.hyper.learn_center]
        pairs = max(least_batch(self.model, self.data.train), least_batch(h.inner, self.data.train)) > 1
        self.model.train()
        group = Group(trained, self.settings.learning_rate)
        loss = self.descend(model=h, groups=[group], objective=_Objective(self, h), least=4 if pairs else 1)
        return Answer(get_arrays(h), len(self.data.train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Make the client's model from its training inputs, without labels; evaluate it."""
        x = self.data.train.x
        if 0 < self.hyper.test_batch < len(x):
            x = x[torch.randperm(len(x), generator=self.generator())[: self.hyper.test_batch].to(x.device)]
        h = self._received(arrays)
        with torch.no_grad():
            self.become(h.outer(self._represent(h, x)), x)
        return self.judged()

    @phase
    def represent(self, arrays: Arrays) -> Answer:
        """Return ``representation``, r(X) (e,), of all the client's training inputs (equation 9)."""
        r = self._represent(self._received(arrays), self.data.train.x)
        return Answer({"representation": r.cpu().numpy()}, len(self.data.train))

    # --------------------------------------------------------------------------------------- details

    def _received(self, arrays: Arrays) -> SetHypernetwork:
        """Return h with the received ψ."""
        self.expect_own_strategy("center" in arrays)
        s, spec = self.settings, dataset_of(self.settings)
        h = _hypernetwork(self.hyper, s.model, spec.shape, s.seed).to(self.data.train.y.device)
        set_arrays(h, arrays)
        return h

    @torch.no_grad()
    def _represent(self, h: SetHypernetwork, x: Tensor) -> Tensor:
        """Return r(X) of any number of inputs, (e,)."""
        if not len(x):
            raise RunError("it has no inputs to make a model of")
        h.eval()
        total = torch.stack([h.inner(part).sum(dim=0) for part in x.split(EVALUATION_BATCH)]).sum(dim=0)
        return total / len(x)


class _Objective(StackedObjective):
    """ℒ + λΩ of a batch, whose first half makes the model; only λΩ for a batch of one example, or without labels.

    Args:
        client: the client.
        h: its hypernetwork.
    """

    def __init__(self, client: FLowDUPClient, h: SetHypernetwork) -> None:
        self._client, self._h = client, h
        forms = [form_for(part, client.data.train) for part in (h.inner, h.outer, client.model)]
        self._forms = [form for form in forms if form is not None]
        whole = len(self._forms) == len(forms)
        self.key = (
            (*(form.signature for form in self._forms), client.hyper.penalty)
            if whole and client.task.per_example and client.data.train.weights is None
            else None
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the loss of a batch of one client."""
        data, h, half = self._client.data, self._h, max(1, len(rows) // 2)
        v = h(data.train.x[rows[:half]])
        total: Tensor = self._client.hyper.penalty * (v - h.center).square().sum()
        if data.labeled and len(rows) > half:
            logits = self._client.logits(data.train.x[rows[half:]], v)
            total = total + self._client.loss(logits, rows[half:])
        return total

    @staticmethod
    def together(objectives: Sequence[_Objective], parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client, (n,)."""
        client, (inner, outer, network) = objectives[0]._client, objectives[0]._forms
        center, split = parameters[0], 1 + len([*objectives[0]._h.inner.parameters()])
        place = torch.arange(batch.y.shape[1], device=batch.y.device)
        halves = (batch.sizes // 2).clamp(min=1)[:, None]
        least, most = max(1, batch.least // 2), max(1, len(place) // 2)  # bounds of all halves
        features = inner(parameters[1:split], batch.x[:, :most])
        r = torch.einsum("nb,nbe->ne", (place[:most] < halves) / halves, features)
        v = outer(parameters[split:], r[:, None])[:, 0]
        total = client.hyper.penalty * (v - center).square().sum(dim=1)
        judged = ((place >= halves) & (place < batch.sizes[:, None]))[:, least:]
        labeled = torch.tensor([objective._client.data.labeled for objective in objectives], device=v.device)
        if judged.shape[1]:
            outputs = network(client.parameters(v), batch.x[:, least:])
            losses = losses_together(client.task, outputs, batch.y[:, least:])
            means = (losses * judged).sum(dim=1) / judged.sum(dim=1).clamp(min=1)
            total = total + labeled * means
        return total


@remembered(2)
def _hypernetwork(hyper: FLowDUPHyper, model: str, shape: tuple[int, ...], seed: int) -> SetHypernetwork:
    """Return the hypernetwork that all clients of the process share; every client overwrites its contents."""
    return make_hypernetwork(hyper, model, shape, seed)


def make_hypernetwork(hyper: FLowDUPHyper, model: str, shape: tuple[int, ...], seed: int) -> SetHypernetwork:
    """Return a hypernetwork with the initial h and ψ_r."""
    return build_set_hypernetwork(
        hyper.inner_model or model, shape, hyper.features, hyper.width, hyper.dimensions, hyper.output_scale, seed
    )
