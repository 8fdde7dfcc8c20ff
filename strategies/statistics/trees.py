"""Boosted trees, server side: depth-wise growth from histograms that are summed over all clients.

Round 1 begins with the cuts of columns of numbers: from the moments follows a fine grid, from counts in it quantiles.
Each round grows a tree, or one for each class, by an exchange for each level: clients return sums of derivatives in
the cells of a level's nodes, from which the best splits follow. See ``clients/statistics/trees.py`` for the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.wire import Reply
from florilegium.clients.hyper.trees import BoostingHyper
from florilegium.clients.statistics.trees import BLOCK, penalty_of, tree_columns
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact
from florilegium.models.statistics.boosting import SPLITS, Candidates, Growing, start
from florilegium.models.statistics.tree_columns import FINE, cuts_of, edges, padded, quantiles
from florilegium.models.trees import margins
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint

Array = NDArray[np.float64]
log = logging.getLogger("flwr")

FAMILIES = ("linear", "logistic", "multinomial")
HISTOGRAM = "histogram"
_ROUNDING = 1e-6
"""What rounding explains of a difference between sums over all rows, relative to the sum of Hessians and 1."""


class BoostedTrees(CohortStrategy):
    """Grows gradient-boosted trees by sums over clients alone."""

    messages = Messages("statistics")
    hyper: BoostingHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.hyper.check_with(self.settings)
        spec = dataset_of(self.settings)
        if self.task.family not in FAMILIES:
            raise ConfigurationError(
                f"task: method 'trees' is for regression of one number, binary and classification, with their own "
                f"losses (found: '{self.settings.task or spec.name}')"
            )
        try:
            self._columns = tree_columns(spec)
        except ValueError as error:
            raise ConfigurationError(f"dataset: 'trees' needs a table: {error}") from error
        self._numbers = [i for i, one in enumerate(self._columns) if not one.categories]
        self._k = margins(self.task.outputs[0])
        self._depth = self.settings.trees.depth
        self._cuts: NDArray[np.float32] | None = None
        self._gains = np.zeros(len(self._columns))
        self._grown = 0

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays: trees that add nothing."""
        return {name: np.zeros_like(array) for name, array in arrays.items()}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`: trees follow from bins that this run chooses."""
        raise ConfigurationError("init: method 'trees' grows its trees from the first on; leave it out")

    # ------------------------------------------------------------------------------------------ rounds

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Grow a tree for each margin; return the network with them."""
        cohort: Sequence[str] = round.sample()
        model = dict(model)
        if self._cuts is None:
            model[f"{BLOCK}bias"], self._cuts = self._begin(round, cohort)
        cuts = cuts_of(self._cuts, self._columns)
        candidates, penalty = Candidates.of(self._columns, cuts), penalty_of(self.hyper)
        cells = sum(one.cells(own) for one, own in zip(self._columns, cuts, strict=True))
        growing, sent = Growing(self._k, self._depth, len(self._columns)), model
        while growing.grows:
            shape = (self._k, 2**growing.level, cells, 2)
            outcome = round.ask(
                "grow", cohort, send={**sent, "cuts": self._cuts}, reduce="sum", shapes={HISTOGRAM: shape},
                level=growing.level, grown=self._grown,
            )  # fmt: skip
            cohort = outcome.clients  # others have no margins of this round
            growing.add(outcome.arrays[HISTOGRAM], candidates, penalty)
            sent = {name: growing.arrays[name] for name in SPLITS}
        place = slice(self._grown * self._k, (self._grown + 1) * self._k)
        for name, own in growing.arrays.items():
            whole = model[f"{BLOCK}{name}"].copy()
            whole[place] = own
            model[f"{BLOCK}{name}"] = whole
        self._gains += growing.gains
        self._grown += 1
        return model

    def _begin(self, round: Round, cohort: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the margins without trees, (K,), and the cuts of all columns, (columns, bins − 1)."""
        k, d = self._k, len(self._numbers)
        found = round.ask("moments", cohort, reduce="sum", shapes={"moments": (3, 1 + k + 2 * d)})
        total = exact.value(found.arrays["moments"])
        weight, known = float(total[0]), total[1 + k : 1 + k + d]
        if weight <= 0:
            raise RunError("trees: no client has a row with a weight above 0")
        bias = start(self.task.family, total[1 : 1 + k] / weight)
        if self.hyper.reach:
            own = np.linspace(-self.hyper.reach, self.hyper.reach, self.hyper.bins + 1)[1:-1].astype(np.float32)
            cuts = [own] * d
        else:
            center = total[1 + k + d :] / np.maximum(known, 1)
            spread = round.ask(
                "spread", cohort, send={"center": center}, reduce="sum", shapes={"spread": (d,)}
            ).arrays["spread"] / np.maximum(known, 1)  # fmt: skip
            scale = np.where(spread > 0, spread, 1.0)
            sent = {"center": center, "scale": scale}
            counts = round.ask("count", cohort, send=sent, reduce="sum", shapes={"counts": (d, FINE + 1)}).arrays
            cuts = [
                quantiles(one, np.rint(own), self.hyper.bins)
                for one, own in zip(edges(center, scale), counts["counts"], strict=True)
            ]
        whole = [np.zeros(0, np.float32)] * len(self._columns)
        for i, own in zip(self._numbers, cuts, strict=True):
            whole[i] = own
        return bias, padded(whole, self.hyper.bins)

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Check that histograms can be sums over rows: Hessians not negative, and all columns with the same rows.

        Raises:
            ValueError: if they cannot.
        """
        if phase != "grow" or not reply.clients:
            return
        sums = reply.arrays[HISTOGRAM]
        low = float(sums[..., 1].min())
        cells = [one.cells(own) for one, own in zip(self._columns, cuts_of(sent["cuts"], self._columns), strict=True)]
        each = np.add.reduceat(sums, np.cumsum([0, *cells[:-1]]), axis=2)
        slack = _ROUNDING * (1 + np.abs(sums[..., 1]).sum(axis=2).max())
        if low < -slack:
            raise ValueError(f"a sum of Hessians is {low:g}, below 0")
        if (away := float(np.abs(each - each[:, :, :1]).max())) > slack:
            raise ValueError(f"the sums over two columns' cells differ by {away:g}: they are not of the same rows")

    # ----------------------------------------------------------------------------------------- results

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the cuts, and how many rounds have grown."""
        own = {} if self._cuts is None else {"cuts": self._cuts}
        return {**own, "gains": self._gains}, {"grown": self._grown}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the cuts."""
        self._cuts, self._gains, self._grown = arrays.get("cuts"), arrays["gains"], int(facts["grown"])

    def report(self) -> dict[str, Any]:
        """Return the number of trees, and the share of all gains that each column has."""
        total = float(self._gains.sum())
        shares: dict[str, float] = {}
        for column, gain in zip(self._columns, self._gains, strict=True):
            shares[column.name] = shares.get(column.name, 0.0) + (float(gain) / total if total else 0.0)
        ranked = dict(sorted(shares.items(), key=lambda one: -one[1]))
        for name, share in [*ranked.items()][:10]:
            log.info("%-40s %5.1f %% of all gains", name, 100 * share)
        return {"trees": {"rounds": self._grown, "trees": self._grown * self._k, "gain": ranked}}
