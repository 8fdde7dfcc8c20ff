"""PeFLL, server side (Scott's thesis, Algorithms 7 and 8): learn to make a model from a client's descriptor.

A round has three exchanges with its cohort P: ``describe`` sends η_v and receives descriptors v_i; ``adapt`` sends
θ_i = h(v_i; η_h) and receives Δθ_i; ``embed`` sends Δv_i and receives Σ Δη_v. Then η_h ← (1 − 2βλ_h) η_h +
1/|P| Σ Δη_h, and η_v likewise, or a step of another optimizer along the same updates. An unseen client gets its model
with two messages down, one up, and no training.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from florilegium.clients.hyper.hypernetworks import PeFLLHyper
from florilegium.clients.pefll import DESCRIPTOR
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_tensors
from florilegium.models.embedding import WITHOUT_LABELS, build_embedding
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, shapes_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.roster import Member
from florilegium.strategies.families.generated import HYPERNETWORK, Generated
from florilegium.strategies.folder.run_folder import Checkpoint

log = logging.getLogger("flwr")


class PeFLL(Generated):
    """Trains an embedding network, used by clients, together with a hypernetwork on the server."""

    messages = Messages("single", features=HYPERNETWORK)
    hyper: PeFLLHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.hyper.embedding == "lstm" and self.spec.kind != "characters":
            raise ConfigurationError(
                f"{self.settings.method}.embedding: 'lstm' reads characters, '{self.spec.name}' is of the kind "
                f"'{self.spec.kind}'; 'linear' is for data of any kind"
            )
        self._embedding = build_embedding(
            self.hyper.embedding, self.spec.shape, self.spec.classes, self.size, self.settings.seed
        )
        self._parameters = [*self.hypernetwork.parameters(), *self._embedding.parameters()]
        self._optimizer = self.make_optimizer(self._parameters)
        self._scale: tuple[Tensor, Tensor] | None = None  # mean and standard deviation of the first descriptors
        self._descriptors: Arrays = {}  # of the clients in the present evaluation

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the embedding network η_v."""
        return get_arrays(self._embedding)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out a round of Algorithm 8; return the new η_v."""
        drawn = round.sample()
        described = self._describe(round, drawn, model, training=True)
        cohort = round.require(described, drawn.wanted).clients
        v = torch.from_numpy(described.arrays[DESCRIPTOR]).float().requires_grad_()
        outcome, made, Δθ = self.adapt(round, cohort, self._normalized(v), out_of=round.able(drawn))
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        count = len(outcome.clients)
        *Δη_h, Δv = self.descent(made, Δθ, [*self.hypernetwork.parameters(), v])
        rows = [cohort.index(client) for client in outcome.clients]
        embedded = round.ask(
            "embed", outcome.clients, reduce="sum", scatter={DESCRIPTOR: Δv[rows].numpy()},
            shapes=shapes_of(get_arrays(self._embedding)), out_of=round.able(drawn),
            batch=self.hyper.descriptor_batch, size=self.size,
        )  # fmt: skip
        λ_h, λ_v = self.hyper.hypernetwork_penalty, self.hyper.embedding_penalty
        updates = [(η, Δ.div_(count), λ_h) for η, Δ in zip(self.hypernetwork.parameters(), Δη_h, strict=True)]
        for name, η in self._embedding.named_parameters():
            Δ = torch.from_numpy(embedded.arrays[name] / len(embedded.clients)).to(η.dtype)
            updates.append((η, Δ, λ_v))
        set_arrays(self._embedding, model)
        self.step(self._optimizer, updates, round.number)
        return get_arrays(self._embedding)

    def describe(self, round: Round, clients: Sequence[str], model: Arrays) -> tuple[list[str], Tensor, dict[str, str]]:
        """Ask the clients for their descriptors for an evaluation (Algorithm 7, lines 1 to 4)."""
        outcome = self._describe(round, clients, model, training=False)
        if not outcome.clients:
            return [], torch.empty(0, self.size), outcome.failures
        v = outcome.arrays[DESCRIPTOR]
        self._descriptors |= dict(zip(outcome.clients, v, strict=True))
        return outcome.clients, self._normalized(torch.from_numpy(v).float()), outcome.failures

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their models; with ``pefll.keep-descriptors``, write their descriptors to a file."""
        self._descriptors = {}
        outcome = super().measure(round, clients, model)
        if self.hyper.keep_descriptors and self.federation.run.opened:
            write_tensors(self.federation.run.path / "descriptors" / f"{round.number}.safetensors", self._descriptors)
        return outcome

    # ----------------------------------------------------------------------------------------- details

    def _describe(self, round: Round, clients: Sequence[str], model: Arrays, *, training: bool) -> Outcome:
        """Ask clients for their descriptors; any number of clients may fail."""
        return round.ask(
            "describe", clients, reduce="stack", send=model, shapes={DESCRIPTOR: (self.size,)},
            evaluation=not training, out_of=0,
            batch=self.hyper.descriptor_batch if training else self.hyper.test_batch, size=self.size, follows=training,
        )  # fmt: skip

    def _normalized(self, v: Tensor) -> Tensor:
        """Return (v − m)/s, with mean m and standard deviation s of the first descriptors received; s = 0 becomes 1."""
        if self.hyper.normalize == "none":
            return v
        if self._scale is None:
            s, m = torch.std_mean(v.detach(), dim=0 if self.hyper.normalize == "each" else None, correction=0)
            self._scale = (m, torch.where(s > 0, s, 1.0))
        m, s = self._scale
        return (v - m) / s

    def unfit(self, client: Member) -> str:
        """Return why a client cannot take part; also a device without labels, if the embedding needs labels."""
        if self.clients.deployed and not client.labeled and self.hyper.embedding not in WITHOUT_LABELS:
            return f"it has no labels, and {self.settings.method}.embedding = '{self.hyper.embedding}' looks at them"
        return super().unfit(client)

    def check_roster(self) -> None:
        super().check_roster()
        if self.hyper.embedding not in WITHOUT_LABELS and self.clients.ids("unlabeled"):
            raise ConfigurationError(
                f"labeled-fraction: some clients have no labels, but {self.settings.method}.embedding = "
                f"'{self.hyper.embedding}' looks at them. Allowed for such clients: {', '.join(sorted(WITHOUT_LABELS))}"
            )

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Start from another run's networks, which require the same ``pefll.normalize``."""
        arrays = super().begin_from(network, trained)
        if (normalize := trained.facts["own"]["normalize"]) != self.hyper.normalize:
            raise ConfigurationError(
                f"{self.settings.method}.normalize: run '{self.settings.init}' has '{normalize}', this run "
                f"'{self.hyper.normalize}'; set it to '{normalize}'"
            )
        return arrays

    def optimizers(self) -> dict[str, Any]:
        """Return the one optimizer of both networks."""
        return {"networks": self._optimizer}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the hypernetwork, the optimizer's state, and the scale of descriptors."""
        arrays, facts = super().state()
        scale = None if self._scale is None else [tensor.tolist() for tensor in self._scale]
        return arrays, {**facts, "normalize": self.hyper.normalize, "scale": scale}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        super().restore(arrays, facts)
        if facts["scale"] is not None:
            m, s = (torch.tensor(numbers) for numbers in facts["scale"])
            self._scale = (m, s)
