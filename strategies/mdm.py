"""MDM, server side: a mixture of Dirichlet-multinomials fitted to clients' histograms by sums (Scott, thesis, ch. 3).

Before round 1 clients choose components at random and the moments of these start the mixtures (algorithm 5); every
round is a step of generalised EM (algorithm 6), of several numbers K of components at once; at the end clients that
took no part choose K (appendix A.1). Sent and received: see ``clients/mdm.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.clients.mdm import split, stack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import parse_whole
from florilegium.models.parameters import Arrays
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.dirichlet_multinomial import EMPTY, Array, Counts, Mixture, initial, start_anew, update
from florilegium.partitions.features import find_feature
from florilegium.privacy.accounting import Release, multiplier, total
from florilegium.privacy.noise import draw, secret_generator
from florilegium.strategies.core.cohort import CohortStrategy, Setup
from florilegium.strategies.core.evaluation import Figures
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.run_folder import Checkpoint

log = logging.getLogger("flwr")

CLEAR = 3
"""A component must stand for so many standard deviations of the noise to be seen through it."""


class MDM(CohortStrategy):
    """How clients differ, learned without looking at any."""

    broadcasts_model: ClassVar[bool] = False
    makes_models: ClassVar[bool] = False
    hyper: MDMHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.numbers = parse_whole(self.hyper.components)
        if self.settings.rounds < 1:
            raise ConfigurationError("rounds: 'mdm' needs at least 1")
        find_feature(find_spec(self.settings.dataset), self.hyper.feature, self.hyper.bins)
        self._course: list[list[float]] = []
        self._history: dict[str, list[Array]] = {"tau": [], "alpha": []}
        self._reseeded: list[dict[str, int]] = []
        self._compared: list[dict[str, float]] = []
        self._chosen = 0
        self._everybody = False  # whether all clients took part in the last round
        self._latest: list[Mixture] = []
        self._begun: dict[str, Any] = {}

    # ---------------------------------------------------------------------------------- who takes part

    @staticmethod
    def privacy_gap(hyper: Any) -> str:
        """Return why the keys of table ``privacy`` are not for this method."""
        return "it protects its sums itself; set mdm.privacy-unit and mdm.epsilon"

    def trainable(self) -> list[str]:
        """Return the clients that the mixtures are fitted to; those without labels too, where no labels are counted."""
        validating = self._validating()
        return [client for client in self._counted() if client not in validating]

    def evaluated(self) -> list[str]:
        """Return the clients that choose K.

        Raises:
            RunError: if all of them have gone.
        """
        clients = sorted(self._validating())
        if len(self.numbers) > 1 and not clients:
            raise RunError("no client is left to choose among several mdm.components; resume when some are back")
        return clients

    def _counted(self) -> list[str]:
        return self.roster.ids("seen", *(["unlabeled"] if self.hyper.feature != "label" else []))

    def _validating(self) -> set[str]:
        """Return a share of the clients, where there is a K to choose; a client's lot never changes."""
        if len(self.numbers) < 2:
            return set()
        share, seed = self.hyper.validation_fraction, self.settings.seed
        return {client for client in self._counted() if _lot(seed, client) < share}

    @cached_property
    def edges(self) -> Counts:
        """The edges of the bins of sizes, (S + 1,): those of ``mdm.size-bins``, or one bin for each size up to M.

        Raises:
            ConfigurationError: if they hold the sizes of no client, or not of all, where all are known.
        """
        h = self.hyper
        sizes = [self.roster.clients[client].train for client in self._counted()]
        if h.privacy_unit != "none" and not h.size_bins and not h.max_size:
            raise ConfigurationError(
                "mdm.max-size: a private run must not take the largest size from the clients; give it, or mdm.size-bins"
            )
        edges = np.array(
            parse_whole(h.size_bins) if h.size_bins else range(1, (h.max_size or max(sizes)) + 2), np.int64
        )
        outside = sum(not edges[0] <= size < edges[-1] for size in sizes)
        if self.roster.deployed:  # others may come
            if outside:
                log.warning("mdm: the bins of sizes do not hold %d of %d clients, which will fail", outside, len(sizes))
            return edges
        if edges[-2] > max(sizes):
            raise ConfigurationError(
                f"mdm.max-size, mdm.size-bins: the last bin begins with {edges[-2]} examples, but no client has more "
                f"than {max(sizes)}; lower it"
            )
        if outside:
            raise ConfigurationError(
                f"mdm.max-size, mdm.size-bins: {outside} of {len(sizes)} clients have a number of examples that no bin "
                f"holds; they have {min(sizes)} to {max(sizes)}"
            )
        return edges

    def summary(self) -> None:
        """Log what is about to run, and what it costs.

        Raises:
            ConfigurationError: if there are too few clients for so many components, or to choose their number, or a
                resumed run would go on with another budget, or ask devices twice.
        """
        super().summary()
        cohort, most = len(self.sample(1)), max(self.numbers)
        if most >= cohort:
            raise ConfigurationError(
                f"mdm.components: {most} components need more clients than that in a round; there are {cohort}"
            )
        if len(self.numbers) > 1 and not self._validating():
            raise ConfigurationError(
                f"mdm.validation-fraction: {self.hyper.validation_fraction:g} of {len(self._counted())} clients are "
                "none, but some must choose among several mdm.components; raise it"
            )
        if self.settings.resume and self._begun != self.privacy():
            raise ConfigurationError(
                "resume: the run began with another privacy budget, which depends on rounds too; start a new run"
            )
        if self.settings.resume and self.roster.deployed and self.noise:
            raise ConfigurationError(
                "resume: a private run of real devices cannot go on: what was asked and lost has been released all the "
                "same, and asking again would cost more than the budget"
            )
        bins = len(self.edges) - 1
        log.info("mdm: sizes up to %d in %d bins; components: %s", self.edges[-1] - 1, bins, self.hyper.components)
        if self.noise:
            self._tell_privacy(cohort / most)

    def _tell_privacy(self, typical: float) -> None:
        """Say what the guarantee is and whether anything can be learned; ``typical``: clients of a component."""
        facts, h = self.privacy(), self.hyper
        log.info(
            "privacy: noise of standard deviation %.4g on the sums of %d exchanges with those that are fitted to, "
            "%.4g on %d with those that choose K; (ε = %.4g, δ = %g)-private for one %s",
            facts["noise"], facts["releases"], facts["comparing_noise"], facts["comparisons"], facts["epsilon"],
            h.delta, h.privacy_unit,
        )  # fmt: skip
        if typical < CLEAR * self.noise:
            log.warning(
                "privacy: a component stands for %.0f clients of a cohort, the noise for %.0f: expect little. More "
                "clients in a round, fewer rounds, fewer components or a larger ε help", typical, self.noise,
            )  # fmt: skip
        clients = len(self._counted())
        if h.delta * clients >= 1:
            log.warning("mdm.delta: δ = %g is not below 1/%d, one over the number of clients", h.delta, clients)

    # --------------------------------------------------------------------------------------- privacy

    @cached_property
    def noise(self) -> float:
        """σ on the sums over clients that are fitted to, who take part in the start and in every round; 0: none."""
        return self._scale(self.settings.rounds + 1)

    @cached_property
    def comparing_noise(self) -> float:
        """σ on the sums over clients that choose K, who take part in every evaluation and nothing else."""
        return self._scale(self._comparisons)

    @property
    def _comparisons(self) -> int:
        rounds, every = self.settings.rounds, self.settings.evaluate_every
        return sum(r == rounds or bool(every and r % every == 0) for r in range(1, rounds + 1))

    def _scale(self, releases: int) -> float:
        """Return σ for so many releases: n with Gaussian noise of multiplier z are one with z/√n."""
        h = self.hyper
        if h.privacy_unit == "none":
            return 0.0
        return self._sensitivity * sqrt(releases) * multiplier("gaussian", h.epsilon, h.delta)

    @property
    def _sensitivity(self) -> float:
        """How much one unit changes a sum: a client all it sends; an example may turn that into anything else."""
        return self.hyper.clip * (2 if self.hyper.privacy_unit == "example" else 1)

    def privacy(self) -> dict[str, Any]:
        """Return what the guarantee is; empty without. The two groups of clients have none in common."""
        if not self.noise:
            return {}
        groups = {self.noise: self.settings.rounds + 1, self.comparing_noise: self._comparisons}
        spent = [
            total([Release("gaussian", scale / self._sensitivity, times)], self.hyper.delta)
            for scale, times in groups.items()
        ]
        return {"unit": self.hyper.privacy_unit, "epsilon": max(spent), "delta": self.hyper.delta,
                "clip": self.hyper.clip, "noise": self.noise, "releases": self.settings.rounds + 1,
                "comparing_noise": self.comparing_noise, "comparisons": self._comparisons}  # fmt: skip

    def ask(
        self, round: Round, cohort: Sequence[str], phase: str, arrays: Arrays, *, evaluation: bool = False
    ) -> Outcome:
        """Have ``cohort`` carry out ``phase``; return the sums, with noise in a private run."""
        outcome = round.ask(phase, cohort, send=arrays, reduce="sum", evaluation=evaluation)
        scale = self.comparing_noise if phase == "compare" else self.noise
        for name, array in outcome.arrays.items() if scale else ():
            rng = secret_generator() if self.roster.deployed else self._rng("noise", round.number, phase, name)
            outcome.arrays[name] = array + draw(rng, "gaussian", scale, array.shape)
        return outcome

    def _rng(self, *purpose: str | int) -> np.random.Generator:
        return numpy_generator(self.settings.seed, "mdm", *purpose)

    # ----------------------------------------------------------------------------------------- rounds

    def server_part(self, arrays: Arrays) -> Arrays:
        """Start from nothing: the first exchange finds the first mixtures."""
        return {}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """The mixtures start from the clients' moments."""
        raise ConfigurationError("init: method 'mdm' starts from the clients' own moments")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Take a step of EM, from the moments in round 1."""
        mixtures = split(model, self.numbers) if round.number > 1 else self._initialise(round.numbered(0))
        cohort = round.sample()
        outcome = self.ask(round, cohort, "expect", stack(mixtures))
        self._everybody = len(cohort) >= len(self.trainable())
        if "likelihood" in outcome.arrays:
            self._course.append((outcome.arrays["likelihood"] / len(outcome.clients)).tolist())
        moved = [
            self._revive(update(mixture, sums, self.noise), round.number, sums)
            for mixture, sums in zip(mixtures, self._apart(outcome.arrays), strict=True)
        ]
        self._latest = moved
        stacked = stack(moved)
        for name, steps in self._history.items():
            steps.append(stacked[name])
        return stacked

    def _initialise(self, round: Round) -> list[Mixture]:
        outcome = self.ask(round, round.sample(), "initialise", {"edges": self.edges})
        return [initial(sums, self.edges, self.noise) for sums in self._apart(outcome.arrays)]

    def _apart(self, sums: Arrays) -> list[Arrays]:
        """Return the sums of every mixture."""
        ends = np.cumsum(self.numbers)
        rows = {name: array for name, array in sums.items() if name != "likelihood"}
        return [
            {name: array[b - k : b] for name, array in rows.items()} for k, b in zip(self.numbers, ends, strict=True)
        ]

    def _revive(self, mixture: Mixture, server_round: int, sums: Arrays) -> Mixture:
        """Start components anew that stand for no client: each once, and not when no round is left to fit it."""
        number = len(mixture.tau)
        if server_round == self.settings.rounds:
            return mixture
        for k in np.flatnonzero(sums["weights"] < EMPTY):
            place = {"k": number, "component": int(k)}
            if any(place.items() <= earlier.items() for earlier in self._reseeded):
                continue
            log.warning("round %d: component %d of %d is empty and starts anew", server_round, k + 1, number)
            self._reseeded.append({"round": server_round, **place})
            mixture = start_anew(mixture, int(k), self._rng("anew", server_round, number, int(k)))
        return mixture

    def finished(self, server_round: int) -> bool:
        """Return whether no mean log-likelihood has changed by ``mdm.tolerance``.

        Only where all clients take part in a round: that of a sample of them says too little.
        """
        if not self.hyper.tolerance or len(self._course) < 2 or not self._everybody:
            return False
        if any(entry["round"] == server_round for entry in self._reseeded):
            return False
        last, before = np.array(self._course[-1]), np.array(self._course[-2])
        return bool((np.abs(last - before) < self.hyper.tolerance).all())

    # ------------------------------------------------------------------------------------- choice of K

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have the clients that took no part compare the mixtures; choose K."""
        outcome = self.ask(round, clients, "compare", model, evaluation=True)
        n = len(outcome.clients)
        means = outcome.arrays["relative"] / n
        self._chosen = choose(self.numbers, means, outcome.arrays["products"] / n, n)
        shown = outcome.arrays["likelihood"] / n if "likelihood" in outcome.arrays else means
        kind = "log_likelihood" if shown is not means else "relative"
        self._compared = [{"k": k, kind: float(value)} for k, value in zip(self.numbers, shown, strict=True)]
        log.info("round %d: k = %d is chosen", round.number, self._chosen)
        return outcome

    def figures(self, outcome: Outcome) -> dict[str, Figures]:
        """Return the mean log-likelihood of every mixture; nobody's own figures are known here."""
        found = [(c["k"], kind, value) for c in self._compared for kind, value in c.items() if kind != "k"]
        return {"seen": {f"{kind}_{k:g}": value for k, kind, value in found}}

    # ----------------------------------------------------------------------------------------- state

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The course of the estimates and of the likelihood."""
        history = {name: np.stack(steps) for name, steps in self._history.items()}
        facts = {"course": self._course, "reseeded": self._reseeded, "privacy": self.privacy()}
        return {**history, "pi": stack(self._latest)["pi"], "edges": self.edges}, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take them back."""
        self._history = {name: list(arrays[name]) for name in self._history}
        last = {name: steps[-1] for name, steps in self._history.items()}
        self._latest = split({**last, "pi": arrays["pi"], "edges": arrays["edges"]}, self.numbers)
        self._course, self._reseeded = list(facts["course"]), list(facts["reseeded"])
        self._begun = facts["privacy"]
        self.__dict__["edges"] = arrays["edges"]  # the clients that are there now may have other sizes

    def report(self) -> dict[str, Any]:
        """The chosen mixture in the form of ``mdm-params``, and how it came about."""
        chosen = self._chosen or self.numbers[0]
        mixture = self._latest[self.numbers.index(chosen)]
        facts = {
            "k": chosen,
            "feature": self.hyper.feature,
            "bins": self.hyper.bins,
            "tau": mixture.tau.tolist(),
            "alpha": mixture.alpha.tolist(),
            "edges": mixture.edges.tolist(),
            "pi": mixture.pi.tolist(),
            "compared": self._compared,
            "reseeded": self._reseeded,
            "course": self._course,
        }
        return {"mdm": facts, "privacy": self.privacy()}


@cache
def _lot(seed: int, client: str) -> float:
    """Return a number in [0, 1) that is a client's for good."""
    return float(numpy_generator(seed, "mdm", "validation", client).random())


def choose(numbers: Sequence[int], means: Array, products: Array, n: int) -> int:
    """Return the smallest K whose mean log-likelihood is at most one standard error below the best.

    The error is that of the difference between the two on the same clients.

    Args:
        numbers: the K's.
        means: mean log-likelihood of each, up to a constant of the client.
        products: mean of the products of two clients' log-likelihoods, (len(numbers), len(numbers)).
        n: number of clients.
    """
    best = int(np.argmax(means))
    square = products[best, best] - 2 * products[best] + np.diag(products)  # mean of the squared differences
    gaps = means[best] - means
    errors = np.sqrt(np.maximum(square - gaps**2, 0.0) / n)
    return min(k for k, gap, error in zip(numbers, gaps, errors, strict=True) if gap <= error)
