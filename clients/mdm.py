"""MDM, client side: sums over its one histogram, for several numbers of components at once (Scott, thesis, chapter 3).

Received: the edges of the bins of sizes, (S + 1,), and ``tau`` (ΣK,), ``pi`` (ΣK, S), ``alpha`` (ΣK, C), the mixtures
one below the other. Answered are the sums of algorithms 5 and 6, stacked alike.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clients.base import Answer, BaseClient, phase
from clients.hyper import MDMHyper, parse_whole
from clients.wire import Config
from common.errors import RunError
from common.seeds import numpy_generator
from models.parameters import Arrays
from partitions.datasets import find_spec
from partitions.dirichlet_multinomial import Array, Counts, Mixture, check_counts, log_likelihood, moments, statistics
from partitions.features import find_feature
from privacy.clipping import clipping_factor


class MDMClient(BaseClient):
    """Says how well every component describes its histogram."""

    hyper: MDMHyper

    @phase
    def initialise(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``sizes``, ``first``, ``second``, for one component of every mixture drawn at random (algorithm 5)."""
        self._fits(arrays)
        parts = []
        for k in self.numbers:
            rng = numpy_generator(self.settings.seed, "client", self.client_id, "component", k)
            parts.append(moments(self.histogram, rng.integers(k, size=1), k, arrays["edges"]))
        return self._sent({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    @phase
    def expect(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``weights``, ``sizes``, ``numerator``, ``denominator`` (algorithm 6).

        Without privacy also ``likelihood``, log q of the client's histogram under every mixture, (number of mixtures,).
        """
        self._fits(arrays)
        parts = [statistics(self.histogram, mixture) for mixture in split(arrays, self.numbers)]
        answer = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if self.hyper.privacy_unit != "none":
            del answer["likelihood"]
        return self._sent(answer)

    @phase
    def compare(self, arrays: Arrays, config: Config) -> Answer:
        """Answer how much better each mixture describes the histogram than all do on average.

        ``relative`` (mixtures,): log q minus its mean over mixtures; ``products`` (mixtures, mixtures): of these.
        Without privacy also ``likelihood``, log q itself.
        """
        self._fits(arrays)
        found = np.concatenate([log_likelihood(self.histogram, mixture) for mixture in split(arrays, self.numbers)])
        relative = found - found.mean()
        answer = {"relative": relative, "products": np.outer(relative, relative)}
        return self._sent(answer | ({"likelihood": found} if self.hyper.privacy_unit == "none" else {}))

    @property
    def numbers(self) -> list[int]:
        """The numbers K of components."""
        return parse_whole(self.hyper.components)

    @cached_property
    def histogram(self) -> Counts:
        """The client's histogram, (1, C)."""
        feature = find_feature(find_spec(self.settings.dataset), self.hyper.feature, self.hyper.bins)
        examples = self.data.train
        values = feature.values(examples.x.numpy(force=True), examples.y.numpy(force=True))
        if len(values) == 0:
            raise RunError("it has no examples to count")
        return check_counts(np.bincount(values, minlength=feature.categories)[None])

    def _fits(self, arrays: Arrays) -> None:
        """Raise :class:`RunError` if no bin of sizes holds the client's."""
        size, edges = int(self.histogram.sum()), arrays["edges"]
        if not edges[0] <= size < edges[-1]:
            raise RunError(
                f"its {size} examples are in none of the bins of sizes, which hold {edges[0]} to {edges[-1] - 1}; see "
                "mdm.size-bins and mdm.max-size"
            )

    def _sent(self, answer: dict[str, Array]) -> Answer:
        """Return an answer that counts as one client, clipped as a whole in a private run."""
        if self.hyper.privacy_unit != "none":
            factor = clipping_factor(np.concatenate([array.ravel() for array in answer.values()]), self.hyper.clip)
            answer = {name: array * factor for name, array in answer.items()}
        return Answer(answer, 1)


def split(arrays: Arrays, numbers: list[int]) -> list[Mixture]:
    """Return the mixtures of ``numbers`` components that are stacked in ``arrays``."""
    ends = np.cumsum(numbers)
    return [
        Mixture(arrays["tau"][a:b], arrays["pi"][a:b], arrays["alpha"][a:b], arrays["edges"])
        for a, b in zip(ends - numbers, ends, strict=True)
    ]


def stack(mixtures: list[Mixture]) -> Arrays:
    """Return ``mixtures`` as they are sent."""
    return {
        "tau": np.concatenate([mixture.tau for mixture in mixtures]),
        "pi": np.concatenate([mixture.pi for mixture in mixtures]),
        "alpha": np.concatenate([mixture.alpha for mixture in mixtures]),
        "edges": mixtures[0].edges,
    }
