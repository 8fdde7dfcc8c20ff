"""MDM, server side: fit a mixture of Dirichlet-multinomials to clients' histograms by sums (Scott, thesis, chapter 3).

Before round 1 clients draw components at random, and moments of the histograms initialise the mixtures (algorithm 5).
Every round is a step of generalised EM (algorithm 6), for several numbers K of components and several random starts of
each at once. The best start of each K is kept, and at the end K is chosen with held-out clients (appendix A.1). See
``clients/mdm.py`` for the arrays that are sent and received.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.clients.mdm import split, stack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import parse_whole
from florilegium.models.parameters import Arrays
from florilegium.partitions.dirichlet_multinomial import EMPTY, Array, Counts, Mixture, initial, start_anew, update
from florilegium.partitions.features import find_feature
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.accounting import Release, multiplier, total
from florilegium.privacy.delta import delta_warning
from florilegium.privacy.noise import draw, secret_generator
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.own_privacy import OwnPrivacy
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.evaluation import Evaluation
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint

log = logging.getLogger("flwr")

LAST = 10
"""Number of last rounds whose likelihoods are averaged to compare starts; in each, all are of the same clients."""
CLEAR = 3
"""A component should represent at least this many standard deviations of the noise, in clients, to be detectable."""


class MDM(OwnPrivacy):
    """Fits a mixture model to the clients' histograms, from sums over clients alone."""

    messages = Messages("statistics", own_privacy="it protects its sums itself; set mdm.privacy-unit and mdm.epsilon")
    models: ClassVar[Literal["global", "own", "none"]] = "none"
    hyper: MDMHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.numbers, self.fitted = parse_whole(self.hyper.components), self.hyper.fitted
        if self.settings.rounds < 1:
            raise ConfigurationError("rounds: 'mdm' needs at least 1")
        self._categories = find_feature(dataset_of(self.settings), self.hyper.feature, self.hyper.bins).categories
        self._course: list[list[float]] = []
        self._history: dict[str, list[Array]] = {"tau": [], "alpha": []}
        self._reseeded: list[dict[str, int]] = []
        self._compared: list[dict[str, float]] = []
        self._chosen: int | None = None  # which of the fitted mixtures held-out clients have chosen
        self._everybody = False  # whether all clients took part in the last round
        self._latest: list[Mixture] = []
        self._begun: dict[str, Any] = {}

    # ---------------------------------------------------------------------------------- who takes part

    def trainable(self) -> list[str]:
        """Return the clients that the mixtures are fitted to; with unlabeled ones, unless labels are counted."""
        validating = self._validating()
        return [client for client in self._counted() if client not in validating]

    def groups(self) -> dict[str, list[str]]:
        """Return the held-out clients, with which K is chosen, as one group.

        Raises:
            RunError: if they are to choose a mixture, but all of these clients are offline.
        """
        clients = sorted(self._validating())
        if self._compares and not clients:
            raise RunError("no client is left to choose among several mixtures; resume when some are back")
        return {"seen": clients} if clients else {}

    def _counted(self) -> list[str]:
        return self.clients.ids("seen", *(["unlabeled"] if self.hyper.feature != "label" else []))

    @property
    def _compares(self) -> bool:
        """Whether held-out clients choose: among several K; in a private run also among starts."""
        private = self.hyper.privacy_unit != "none"
        return len(self.numbers) > 1 or (private and len(self.fitted) > 1)

    def _validating(self) -> set[str]:
        """Return the held-out clients, always the same ones; empty if they have nothing to choose."""
        if not self._compares:
            return set()
        share, seed = self.hyper.validation_fraction, self.settings.seed
        return {client for client in self._counted() if _lot(seed, client) < share}

    @cached_property
    def edges(self) -> Counts:
        """Edges of the size bins, (S + 1,): those of ``mdm.size-bins``, or one bin for each size up to M.

        Raises:
            ConfigurationError: if M is missing in a private run; or in a simulation, if the bins do not contain all
                clients' sizes, or the last bin contains none.
        """
        h = self.hyper
        sizes = [self.clients[client].train for client in self._counted()]
        if h.privacy_unit != "none" and not h.size_bins and not h.max_size:
            raise ConfigurationError(
                "mdm.max-size: a private run must not take the largest size from the clients; give it, or mdm.size-bins"
            )
        edges = np.array(
            parse_whole(h.size_bins) if h.size_bins else range(1, (h.max_size or max(sizes)) + 2), np.int64
        )
        outside = sum(not edges[0] <= size < edges[-1] for size in sizes)
        if self.clients.deployed:  # further devices may join later
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
        """Log the run's setting and its privacy cost.

        Raises:
            ConfigurationError: if there are too few clients for the number of components, or to choose it; or a resumed
                run has another budget than before, or would ask real devices twice.
        """
        super().summary()
        cohort, most = self.federation.cohort_size(1), max(self.numbers)
        if most >= cohort:
            raise ConfigurationError(
                f"mdm.components: {most} components need more clients than that in a round; there are {cohort}"
            )
        if self._compares and not self._validating():
            raise ConfigurationError(
                f"mdm.validation-fraction: {self.hyper.validation_fraction:g} of {len(self._counted())} clients are "
                "none, but some must choose among several mdm.components or mdm.restarts; raise it"
            )
        if self.settings.resume and self._begun != self.privacy():
            raise ConfigurationError(
                "resume: the run began with another privacy budget, which depends on rounds too; start a new run"
            )
        if self.settings.resume and self.clients.deployed and self.noise:
            raise ConfigurationError(
                "resume: a private run of real devices cannot be resumed: what was requested and lost counts as "
                "released, and requesting it again would exceed the budget"
            )
        bins = len(self.edges) - 1
        log.info(
            "mdm: sizes up to %d in %d bins; components: %s; starts of each: %d",
            self.edges[-1] - 1, bins, self.hyper.components, self._starts,
        )  # fmt: skip
        if self.noise:
            self._tell_privacy(cohort / most)

    def _tell_privacy(self, typical: float) -> None:
        """Log the guarantee, and warn if the noise is too large; ``typical``: mean number of clients per component."""
        facts, h = self.privacy(), self.hyper
        log.info(
            "privacy: noise of standard deviation %.4g on the sums of %d exchanges with those that are fitted to, "
            "%.4g on %d with those that choose K; (ε = %.4g, δ = %g)-private for one %s",
            facts["noise"], facts["releases"], facts["comparing_noise"], facts["comparisons"], facts["epsilon"],
            h.delta, h.privacy_unit,
        )  # fmt: skip
        if typical < CLEAR * self.noise:
            log.warning(
                "privacy: a component stands for %.0f clients of a cohort, the noise for %.0f: the result will be "
                "mostly noise. More clients in a round, fewer rounds, fewer components or a larger ε help",
                typical, self.noise,
            )  # fmt: skip
        if warning := delta_warning("mdm.delta", h.delta, len(self._counted()), "clients"):
            log.warning("%s", warning)

    # --------------------------------------------------------------------------------------- privacy

    @cached_property
    def noise(self) -> float:
        """σ of the noise on sums over the clients of the fit, for the initialisation and every round; 0: no noise."""
        return self._scale(self.settings.rounds + 1)

    @cached_property
    def comparing_noise(self) -> float:
        """σ of the noise on sums over the held-out clients, which take part only in evaluations."""
        return self._scale(self._comparisons)

    @property
    def _comparisons(self) -> int:
        rounds, every = self.settings.rounds, self.settings.evaluate_every
        return sum(r == rounds or bool(every and r % every == 0) for r in range(1, rounds + 1))

    def _scale(self, releases: int) -> float:
        """Return σ for this many releases: n releases with noise multiplier z cost as much as one with z/√n."""
        h = self.hyper
        if h.privacy_unit == "none":
            return 0.0
        return self._sensitivity * sqrt(releases) * multiplier("gaussian", h.epsilon, h.delta)

    @property
    def _sensitivity(self) -> float:
        """How much one unit can change a sum: a client by the clipping norm, an example by twice that."""
        return self.hyper.clip * (2 if self.hyper.privacy_unit == "example" else 1)

    def privacy(self) -> dict[str, Any]:
        """Return the privacy guarantee, as in ``summary.json``; empty without privacy.

        ε is the larger of those of the two groups of clients, which are disjoint.
        """
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
        """Have ``cohort`` carry out ``phase``; return the outcome, with noise on its sums in a private run."""
        outcome = self.ask_sums(round, phase, cohort, arrays, self._shapes(phase), evaluation=evaluation)
        scale = self.comparing_noise if phase == "compare" else self.noise
        for name, array in outcome.arrays.items() if scale else ():
            rng = secret_generator() if self.clients.deployed else self._rng("noise", round.number, phase, name)
            outcome.arrays[name] = array + draw(rng, "gaussian", scale, array.shape)
        return outcome

    def _shapes(self, phase: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the sums that clients return in ``phase``, by name."""
        rows, mixtures = sum(self.fitted), len(self.fitted)
        wide, sizes = (rows, self._categories), (rows, len(self.edges) - 1)
        if phase == "initialise":
            return {"sizes": sizes, "first": wide, "second": wide}
        shapes: dict[str, tuple[int, ...]] = {"relative": (mixtures,), "products": (mixtures, mixtures)}
        if phase == "expect":
            shapes = {"weights": (rows,), "sizes": sizes, "numerator": wide, "denominator": (rows,)}
        return shapes | ({} if self.hyper.privacy_unit != "none" else {"likelihood": (mixtures,)})

    def _rng(self, *purpose: str | int) -> np.random.Generator:
        return numpy_generator(self.settings.seed, "mdm", *purpose)

    # ----------------------------------------------------------------------------------------- rounds

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return no arrays, since the first exchange initialises the mixtures."""
        return {}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`, since the mixtures are always initialised from the clients' moments."""
        raise ConfigurationError("init: method 'mdm' starts from the clients' own moments")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Take a step of EM for all mixtures; in round 1 initialise them first. Return the new mixtures, stacked."""
        mixtures = split(model, self.fitted) if round.number > 1 else self._initialise(round.numbered(0))
        cohort = round.sample()
        outcome = self.ask(round, cohort, "expect", stack(mixtures))
        self._everybody = len(cohort) >= len(self.trainable())
        if "likelihood" in outcome.arrays:
            self._course.append((outcome.arrays["likelihood"] / len(outcome.clients)).tolist())
        moved = [
            self._revive(update(mixture, sums, self.noise), round.number, index % self._starts, sums)
            for index, (mixture, sums) in enumerate(zip(mixtures, self._apart(outcome.arrays), strict=True))
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
        """Split stacked sums into those of each mixture."""
        ends = np.cumsum(self.fitted)
        rows = {name: array for name, array in sums.items() if name != "likelihood"}
        return [
            {name: array[b - k : b] for name, array in rows.items()} for k, b in zip(self.fitted, ends, strict=True)
        ]

    def _revive(self, mixture: Mixture, server_round: int, start: int, sums: Arrays) -> Mixture:
        """Re-initialise components with almost no weight: each at most once, and not in the last round."""
        number = len(mixture.tau)
        if server_round == self.settings.rounds:
            return mixture
        for k in np.flatnonzero(sums["weights"] < EMPTY):
            place = {"k": number, "start": start, "component": int(k)}
            if any(place.items() <= earlier.items() for earlier in self._reseeded):
                continue
            log.warning("round %d: component %d of %d is empty and starts anew", server_round, k + 1, number)
            self._reseeded.append({"round": server_round, **place})
            mixture = start_anew(mixture, int(k), self._rng("anew", server_round, number, start, int(k)))
        return mixture

    def finished(self, server_round: int) -> bool:
        """Return whether each mixture's mean log-likelihood has changed by less than ``mdm.tolerance``.

        False unless all clients took part in the round, since the mean over a sample varies too much.
        """
        if not self.hyper.tolerance or len(self._course) < 2 or not self._everybody:
            return False
        if any(entry["round"] == server_round for entry in self._reseeded):
            return False
        last, before = np.array(self._course[-1]), np.array(self._course[-2])
        return bool((np.abs(last - before) < self.hyper.tolerance).all())

    # ------------------------------------------------------------------------------------- choice of K

    @property
    def _starts(self) -> int:
        """Number of starts of each K."""
        return len(self.fitted) // len(self.numbers)

    def _best(self, scores: Array) -> list[int]:
        """Return for each K which of the fitted mixtures is its start with the best of ``scores``."""
        firsts = range(0, len(self.fitted), self._starts)
        return [first + int(np.argmax(scores[first : first + self._starts])) for first in firsts]

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have the held-out clients compare the mixtures; choose K, and in a private run each K's start."""
        outcome = self.ask(round, clients, "compare", model, evaluation=True)
        n = len(outcome.clients)
        means, products = outcome.arrays["relative"] / n, outcome.arrays["products"] / n
        best = self._best(np.mean(self._course[-LAST:], axis=0) if self._course else means)
        k = choose(self.numbers, means[best], products[np.ix_(best, best)], n)
        self._chosen = best[self.numbers.index(k)]
        shown = outcome.arrays["likelihood"] / n if "likelihood" in outcome.arrays else means
        kind = "log_likelihood" if shown is not means else "relative"
        self._compared = [{"k": k, kind: float(value)} for k, value in zip(self.numbers, shown[best], strict=True)]
        log.info("round %d: k = %d is chosen", round.number, k)
        return outcome

    def figures(self, outcome: Outcome) -> Evaluation:
        """Return the mean log-likelihood of every mixture; figures of single clients are not known."""
        found = [(c["k"], kind, value) for c in self._compared for kind, value in c.items() if kind != "k"]
        return Evaluation({"seen": {f"{kind}_{k:g}": value for k, kind, value in found}})

    # ----------------------------------------------------------------------------------------- state

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the estimates and likelihoods of all rounds, the latest mixtures, and the privacy guarantee."""
        history = {name: np.stack(steps) for name, steps in self._history.items()}
        facts = {"course": self._course, "reseeded": self._reseeded, "privacy": self.privacy()}
        return {**history, "pi": stack(self._latest)["pi"], "edges": self.edges}, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._history = {name: list(arrays[name]) for name in self._history}
        last = {name: steps[-1] for name, steps in self._history.items()}
        self._latest = split({**last, "pi": arrays["pi"], "edges": arrays["edges"]}, self.fitted)
        self._course, self._reseeded = list(facts["course"]), list(facts["reseeded"])
        self._begun = facts["privacy"]
        self.__dict__["edges"] = arrays["edges"]  # sizes of the present clients may differ from those at the start

    def report(self) -> dict[str, Any]:
        """Return the chosen mixture in the form of ``mdm-params``, and the course of the fit and of the comparison.

        ``mixture`` is its index among all that were fitted, each K once for every start, as in ``course``.
        """
        chosen = self._chosen
        if chosen is None:
            chosen = self._best(np.mean(self._course[-LAST:], axis=0))[0] if self._course else 0
        mixture = self._latest[chosen]
        facts = {
            "k": self.fitted[chosen],
            "mixture": chosen,
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
    """Return a fixed random number in [0, 1) for a client, from the run's seed."""
    return float(numpy_generator(seed, "mdm", "validation", client).random())


def choose(numbers: Sequence[int], means: Array, products: Array, n: int) -> int:
    """Return the smallest K whose mean log-likelihood is at most one standard error below the best.

    The standard error is that of the difference between the two log-likelihoods on the same clients.

    Args:
        numbers: the numbers K to choose from.
        means: for each K the mean over clients of the log-likelihood, up to a constant per client.
        products: for each pair of K the mean over clients of the product of their log-likelihoods,
            (len(numbers), len(numbers)).
        n: number of clients.
    """
    best = int(np.argmax(means))
    square = products[best, best] - 2 * products[best] + np.diag(products)  # mean of the squared differences
    gaps = means[best] - means
    errors = np.sqrt(np.maximum(square - gaps**2, 0.0) / n)
    return min(k for k, gap, error in zip(numbers, gaps, errors, strict=True) if gap <= error)
