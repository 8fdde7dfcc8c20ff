"""Base strategy of all clustering methods: the privacy budget, FedDP-Lloyds, and measuring a clustering.

Round 1 finds initial centres, in a way that each method defines; every further round is a step of FedDP-Lloyds (Scott,
thesis, algorithm 12), so that T = ``rounds`` − 1. Noise is added here, once, to the sum over all nodes, or by the
devices (``kmeans.noise-at``). Sends centres (k, d); receives sums (k, d) and counts (k,).
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil, prod
from typing import Any, ClassVar

import numpy as np

from florilegium.clients.core.wire import Reply
from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.files import write_text
from florilegium.common.seeds import numpy_generator
from florilegium.models.clustering import Array, clustering_accuracy
from florilegium.models.kmeans import k_means
from florilegium.models.parameters import Arrays
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.server_data import server_examples
from florilegium.privacy.clipping import clip_rows
from florilegium.privacy.delta import delta_warning
from florilegium.privacy.noise import secret_generator
from florilegium.strategies.clustering.bounds import client_bounds
from florilegium.strategies.clustering.budget import Budget, Query, lloyds_queries
from florilegium.strategies.clustering.ranges import box, check_sums
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.own_privacy import OwnPrivacy
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint

log = logging.getLogger("flwr")


OWN_SUMS = Messages("statistics", own_privacy="it protects its sums itself; set kmeans.epsilon")
"""What clusterings have in common; each states it in its own body."""


class KMeans(OwnPrivacy):
    """Finds initial centres in round 1, and refines them by private steps of Lloyd's algorithm."""

    hyper: KMeansHyper
    refines: ClassVar[bool] = True
    """Whether steps of FedDP-Lloyds may follow round 1; False for methods that are not private."""
    chooses_k: ClassVar[bool] = False
    """Whether the method supports ``kmeans.choose-k``."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.settings.rounds < 1 or (self.settings.rounds > 1 and not self.refines):
            allowed = "1, the clustering, and one more for every step of FedDP-Lloyds" if self.refines else "1"
            raise ConfigurationError(
                f"rounds: '{self.settings.method}' takes {allowed} (found: {self.settings.rounds})"
            )
        self._course: list[dict[str, float]] = []
        self._begun: dict[str, Any] = {}
        if self.hyper.choose_k and not self.chooses_k:
            raise ConfigurationError(
                f"kmeans.choose-k: '{self.settings.method}' has no weighted points to choose k by; set it to 0"
            )
        self.k = self.hyper.k
        self.most = self.hyper.choose_k or self.hyper.k
        self.spec = dataset_of(self.settings)
        self.dimension = prod(self.spec.shape)  # d

    # ----------------------------------------------------------------------- what a method overrides

    @abstractmethod
    def initialise(self, round: Round) -> Array:
        """Return initial centres, (k, d)."""

    def queries(self, steps: int) -> list[Query]:
        """Return all sums that the run asks for, with ``steps`` steps of FedDP-Lloyds."""
        return lloyds_queries(self.hyper, steps, 1.0)

    # -------------------------------------------------------------------------------- server's data

    @cached_property
    def points(self) -> Array:
        """The server's points (s, d); clipped to norm Δ with example-level privacy, like the clients' points."""
        raw = self._server_points
        return clip_rows(raw, self.radius) if self.hyper.privacy_unit == "example" else raw

    @cached_property
    def _server_points(self) -> Array:
        examples = server_examples(self.settings, deployed=self.clients.deployed)
        points: Array = examples.x.flatten(1).double().numpy(force=True)
        if len(points) < self.most:
            raise ConfigurationError(
                f"kmeans.k: {self.most} clusters need at least as many points of the server; it has {len(points)} "
                "(keys server-examples, server-ood-examples, server-data)"
            )
        return points

    @cached_property
    def radius(self) -> float:
        """Δ: the configured radius, or the largest norm of the server's points."""
        radius = self.hyper.radius or float(np.linalg.norm(self._server_points, axis=1).max())
        if not 0 < radius < np.inf:
            raise ConfigurationError(
                f"kmeans.radius: the server's points have the radius {radius:g}, to which none can be clipped; give Δ"
            )
        return radius

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """Return the server's random generator for a purpose, from the run's seed."""
        return numpy_generator(self.settings.seed, "kmeans", *purpose)

    # --------------------------------------------------------------------------------------- privacy

    @cached_property
    def budget(self) -> Budget | None:
        """The privacy budget of all releases of the run, computed before the first exchange; None without privacy."""
        unit, queries = self.hyper.privacy_unit, self.queries(self.settings.rounds - 1)
        if unit == "none" or not queries:
            return None
        clients = self.trainable()
        units = sum(self.clients[client].train for client in clients) if unit == "example" else len(clients)
        if warning := delta_warning("kmeans.delta", self.hyper.delta, units, f"{unit}s"):
            log.warning("%s", warning)
        if unit == "example":
            bounds = {"outer": self.radius**2, "weights": 1.0, "sums": self.radius, "counts": 1.0}
        else:
            size = self.hyper.client_size or self.settings.samples_per_client
            if not size:
                raise ConfigurationError(
                    "kmeans.client-size: say how many points a usual client has, as is publicly known; bounds taken "
                    "from the clients themselves would give them away"
                )
            bounds = client_bounds(self.hyper, self._server_points, self.most, size, self.rng("bounds"))
        return Budget(self.hyper, queries, bounds, clipped=unit == "client")

    def summary(self) -> None:
        """Log the run's setting and its privacy budget; write the budget to ``privacy.json``.

        Raises:
            ConfigurationError: if a resumed run has another budget than before, or would ask real devices twice.
        """
        super().summary()
        if self.settings.resume and self._begun != self._record():
            raise ConfigurationError(
                "resume: the run began with another privacy budget, which depends on rounds too; start a new run"
            )
        if self.settings.resume and self.budget and self.clients.deployed:
            raise ConfigurationError(
                "resume: a private clustering of real devices cannot be resumed: what was requested and lost counts as "
                "released, and requesting it again would exceed the budget"
            )
        if self.budget is None:
            log.info("privacy: no noise is added")
            if self.clients.deployed and not self.settings.secure_aggregation and not self.hyper.reveal_rows:
                log.info("privacy: devices refuse sums that reveal single rows (key kmeans.reveal-rows)")
            return
        for line in self.budget.lines():
            log.info("privacy: %s", line)
        if not self.clients.deployed:
            log.info("privacy: in a simulation, anyone who knows the seed can remove the noise")
        write_text(self.federation.run.path / "privacy.json", json.dumps(self.budget.record(), indent=2))

    def ask(self, round: Round, phase: str, arrays: Arrays) -> Arrays:
        """Have the round's cohort carry out ``phase`` on ``arrays``; return the released sums, with noise.

        Raises:
            RunError: if devices add the noise, and so many failed that the noise of the others is too small.
        """
        cohort = round.sample()
        guards = self.budget.guards(phase) if self.budget else {}
        by_devices = self.hyper.noise_at == "device" and bool(guards)
        shares = max(1, ceil((1 - self.hyper.dropout) * cohort.wanted))
        unit = self.hyper.privacy_unit
        outcome = self.ask_sums(
            round, phase, cohort, arrays, self.shapes(phase, arrays), shares=shares,
            radius=self.radius if unit == "example" else None,
            bounds=[guard.bound for guard in guards.values()] if unit == "client" else None,
            scales=[guard.scale for guard in guards.values()] if by_devices else None,
        )  # fmt: skip
        if by_devices and len(outcome.clients) < shares:
            raise RunError(
                f"{len(outcome.clients)} of {cohort.wanted} devices added their noise, {shares} must, so that the sums "
                "are private; raise kmeans.dropout to let more of them fail"
            )
        if by_devices or self.hyper.privacy_unit == "none":
            return outcome.arrays
        return {
            name: array + guards[name].noise(self._noise(round.number, phase, name), array.shape)
            for name, array in outcome.arrays.items()
        }

    def shapes(self, phase: str, sent: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the sums that clients return in ``phase`` for the arrays ``sent``, by name."""
        d, rows = self.dimension, len(sent.get("centers", sent.get("points", ())))
        shapes = {"outer": (d * (d + 1) // 2,), "sums": (rows, d)}
        queries = self.queries(self.settings.rounds - 1)
        return {query.name: shapes.get(query.name, (rows,)) for query in queries if query.phase == phase}

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Raise ``ValueError`` if sums cannot be those of the clients' points; sums with noise may be any."""
        unit = self.hyper.privacy_unit
        if self.hyper.noise_at == "device" and unit != "none":
            return
        low, high = box(self.spec)
        reach = self.radius if unit == "example" else float(np.linalg.norm(np.maximum(-low, high)))
        check_sums(reply, reach, capped=unit == "client" and "sums" in reply.arrays)

    def _noise(self, *path: str | int) -> np.random.Generator:
        """Return the random generator for noise: a secret one with real devices, else one from the run's seed."""
        return secret_generator() if self.clients.deployed else self.rng("noise", *path)

    # ----------------------------------------------------------------------------------------- rounds

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return no arrays, since round 1 finds the first centres."""
        return {}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`, since a clustering cannot start from another run."""
        raise ConfigurationError(f"init: method '{self.settings.method}' finds its own centres to start from")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Return the initial centres in round 1, and refined ones in further rounds."""
        if round.number == 1:
            return {"centers": self.initialise(round)}
        centers = model["centers"]
        released = self.ask(round, "lloyd", {"centers": centers})
        return {"centers": self.divide(released, "lloyd", centers)}

    def divide(self, released: Arrays, phase: str, fallback: Array) -> Array:
        """Return centres ν_j = m_j / n_j, (k, d); for a cluster whose noisy count is too small, its ``fallback``.

        A count is too small if it is below 1, or below ``kmeans.min-count`` times its noise scale. With example-level
        privacy the centres are clipped to norm Δ, as all points are.
        """
        counts = released["counts"]
        scale = self.budget.guards(phase)["counts"].scale if self.budget else 0.0
        enough = counts >= max(1.0, self.hyper.min_count * scale)
        if not enough.all():
            log.warning("%s: %d clusters are too small to be moved", phase, int((~enough).sum()))
        means = released["sums"] / np.where(enough, counts, 1.0)[:, None]
        centers = np.where(enough[:, None], means, fallback)
        return clip_rows(centers, self.radius) if self.budget and self.hyper.privacy_unit == "example" else centers

    def cluster(self, points: Array, weights: Array) -> Array:
        """Return k centres of weighted points, by k-means of scikit-learn."""
        return k_means(points, weights, self.k, self.hyper.restarts, self.rng("k-means"))

    # ------------------------------------------------------------------------------------- evaluation

    def groups(self) -> dict[str, list[str]]:
        """Return the clients whose points are clustered, on which a clustering is also measured, as one group."""
        clients = self.trainable()
        return {"seen": clients} if clients else {}

    def trainable(self) -> list[str]:
        """Return all clients except unseen ones; labels are not needed."""
        return self.clients.ids("seen", "unlabeled")

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` measure the centres on their points; in private runs, real devices only keep the centres."""
        figures, shape = not (self.clients.deployed and self.budget), (len(model["centers"]), self.spec.classes)
        outcome = round.ask(
            "test", clients, send=model, reduce="sum", shapes={"table": shape}, evaluation=True, figures=figures
        )  # fmt: skip
        if not figures:
            return outcome
        mean = outcome.mean("loss", "num-examples")
        accuracy = clustering_accuracy(outcome.arrays["table"])
        log.info("round %d: cost per point %.4f, clustering accuracy %.4f", round.number, mean, accuracy)
        self._course.append({"round": round.number, "cost": mean, "accuracy": accuracy})
        return outcome

    # ----------------------------------------------------------------------------------------- state

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the measurements, k, and the budget, which must be the same in a resumed run."""
        return {}, {"course": self._course, "budget": self._record(), "k": self.k}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the measurements, k and the budget."""
        self._course, self._begun, self.k = list(facts["course"]), facts["budget"], int(facts["k"])

    def _record(self) -> dict[str, Any]:
        return self.budget.record() if self.budget else {}

    def report(self) -> dict[str, Any]:
        """Return cost per point and clustering accuracy after each evaluated round, and the privacy budget."""
        last = {name: value for name, value in self._course[-1].items() if name != "round"} if self._course else {}
        return {"kmeans": {**last, "k": self.k, "course": self._course}, "privacy": self._record()}
