"""MDM, client side: statistics of the client's histogram, for all mixtures that are fitted (Scott, thesis, chapter 3).

Receives the edges of the size bins, (S + 1,), and the stacked mixtures ``tau`` (ΣK,), ``pi`` (ΣK, S), ``alpha``
(ΣK, C). Returns the client's terms of the sums in algorithms 5 and 6, stacked in the same way.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import RunError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays
from florilegium.partitions.dirichlet_multinomial import (
    Array,
    Counts,
    Mixture,
    log_joint,
    log_likelihoods,
    moments,
    statistics,
)
from florilegium.partitions.features import find_feature, uncovered
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.clipping import clipping_factor
from florilegium.privacy.noise import secret_generator


class MDMClient(BaseClient):
    """Computes how well every component describes the client's histogram."""

    training = Training("it protects its sums itself; set mdm.privacy-unit and mdm.epsilon")
    uses_finetuning = "never"
    augments = False
    hyper: MDMHyper

    @phase
    def initialise(self, arrays: Arrays) -> Answer:
        """Return ``sizes``, ``first``, ``second`` for one randomly drawn component of every mixture (algorithm 5)."""
        counts, edges = self._histogram(arrays["edges"])
        # On a device the drawn components must stay secret, so the run's seed is used only in simulations.
        generators = {
            k: numpy_generator(self.settings.seed, "client", self.client_id, "component", k)
            if self.data.simulated
            else secret_generator()
            for k in sorted({*self.numbers})
        }
        parts = [moments(counts, generators[k].integers(k, size=1), k, edges) for k in self.numbers]
        return self._sent({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    @phase
    def expect(self, arrays: Arrays) -> Answer:
        """Return ``weights``, ``sizes``, ``numerator``, ``denominator`` (algorithm 6).

        Without privacy also ``likelihood``, log q of the client's histogram under every mixture, (number of mixtures,).
        """
        counts, edges = self._histogram(arrays["edges"])
        stacked = Mixture(arrays["tau"], arrays["pi"], arrays["alpha"], edges)
        answer = statistics(counts, stacked, self.numbers)
        if self._private:
            del answer["likelihood"]
        return self._sent(answer)

    @phase
    def compare(self, arrays: Arrays) -> Answer:
        """Return how much better each mixture describes the histogram than the mixtures do on average.

        ``relative`` (mixtures,): log q minus its mean over mixtures; ``products`` (mixtures, mixtures): the products
        of these values.
        Without privacy also ``likelihood``, log q itself.
        """
        counts, edges = self._histogram(arrays["edges"])
        stacked = Mixture(arrays["tau"], arrays["pi"], arrays["alpha"], edges)
        found = log_likelihoods(log_joint(counts, stacked), self.numbers)[0]
        relative = found - found.mean()
        answer = {"relative": relative, "products": np.outer(relative, relative)}
        return self._sent(answer | ({} if self._private else {"likelihood": found}))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since clients have no model to train."""
        raise RunError("method 'mdm' trains no models of clients")

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since clients have no model to test."""
        raise RunError("method 'mdm' makes no models of clients")

    @property
    def numbers(self) -> list[int]:
        """The numbers of components of the mixtures: each K once for every start."""
        return self.hyper.fitted

    @property
    def _private(self) -> bool:
        return self.hyper.privacy_unit != "none"

    @cached_property
    def _counts(self) -> Counts:
        """How often each value occurs among the client's examples, (1, C).

        Raises:
            RunError: if there are no examples, or values that the feature does not have. A private run raises no error
                and skips such values.
        """
        feature = find_feature(dataset_of(self.settings), self.hyper.feature, self.hyper.bins)
        examples = self.data.train
        values = feature.values(examples.x.numpy(force=True), examples.y.numpy(force=True))
        if not self._private and (values < 0).any():
            raise RunError(uncovered(self.hyper.feature, self.hyper.bins))
        if not self._private and len(values) == 0:
            raise RunError("it has no examples to count")
        return np.bincount(values[values >= 0], minlength=feature.categories)[None]

    def _histogram(self, edges: Counts) -> tuple[Counts, Counts]:
        """Return the client's histogram (1, C), and size-bin edges, one bin of which contains its number of examples.

        In a private run a client must not fail, since a failure would reveal something about it. The outermost bins are
        therefore widened to contain any size. A client without examples gets a placeholder histogram; its reply will be
        zeros.

        Raises:
            RunError: if the run is not private and no bin contains the client's number of examples.
        """
        counts, size = self._counts, int(self._counts.sum())
        if not self._private and not edges[0] <= size < edges[-1]:
            raise RunError(
                f"its number of examples is in none of the bins of sizes, which hold {edges[0]} to {edges[-1] - 1} "
                "(keys mdm.size-bins, mdm.max-size)"
            )
        if not size:
            counts, size = np.eye(1, counts.shape[1], dtype=np.int64), 1
        wide = edges.copy()
        wide[0], wide[-1] = min(wide[0], size), max(wide[-1], size + 1)
        return counts, wide

    def _sent(self, answer: dict[str, Array]) -> Answer:
        """Return ``answer`` as the result of one client, clipped in a private run.

        Statistics that are bounded anyway (weights and shares) and those that may be large (sums for the step in α)
        are clipped separately, each to half of the squared bound, so that large clients do not lose weight.
        """
        if self._private:
            # In the order of ``answer``, not of a set, which differs between processes and would change the last bits.
            halves = ([n for n in answer if n in BOUNDED], [n for n in answer if n not in BOUNDED])
            groups = [names for names in halves if names]
            for names in groups:
                whole = np.concatenate([answer[name].ravel() for name in names])
                factor = clipping_factor(whole, self.hyper.clip / np.sqrt(len(groups))) if self._counts.any() else 0.0
                answer |= {name: answer[name] * factor for name in names}
        return Answer(answer, 1)


BOUNDED = frozenset({"weights", "sizes", "first", "second"})
"""Names of the sums to which a client contributes at most 1 for each mixture."""


def split(arrays: Arrays, numbers: list[int]) -> list[Mixture]:
    """Return the mixtures of ``numbers`` components that are stacked in ``arrays``."""
    ends = np.cumsum(numbers)
    return [
        Mixture(arrays["tau"][a:b], arrays["pi"][a:b], arrays["alpha"][a:b], arrays["edges"])
        for a, b in zip(ends - numbers, ends, strict=True)
    ]


def stack(mixtures: list[Mixture]) -> Arrays:
    """Return ``mixtures`` as stacked arrays, the form in which they are sent."""
    return {
        "tau": np.concatenate([mixture.tau for mixture in mixtures]),
        "pi": np.concatenate([mixture.pi for mixture in mixtures]),
        "alpha": np.concatenate([mixture.alpha for mixture in mixtures]),
        "edges": mixtures[0].edges,
    }
