"""Descriptions of tables, server side: what all clients hold, and which of them differs, before anything is trained.

Sums of numbers give means, then deviations, then bins; counts in bins give quantiles and histograms. A private run only
counts, in bins of the schema's scales. The description is written to ``description.json`` and ``description.html``.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import DescribeHyper
from florilegium.clients.statistics.describe import SQUARES
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_text
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact
from florilegium.partitions.described_columns import Described, columns_of
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.fitted_scales import FILE as SCALES
from florilegium.partitions.sources.fitted_scales import Fitted, Number
from florilegium.partitions.sources.mixed_dates import MIXED
from florilegium.privacy.accounting import Release, multiplier, total
from florilegium.privacy.noise import draw, secret_generator
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint
from florilegium.strategies.statistics.description import column_facts, compared, problems
from florilegium.strategies.statistics.description_page import page
from florilegium.strategies.statistics.medians import medians
from florilegium.strategies.statistics.members import OtherClientsError, same_members

Array = NDArray[np.float64]
log = logging.getLogger("flwr")

LARGE_UNIT = 2.0**15
"""Unit of deviations of numbers that are not standardised; a power of 2 changes no digit."""
MOST_BITS = 18
"""log₂ of the most places of hashes of rows; 2 MB from each client."""
JSON, HTML = "description.json", "description.html"


class Describe(CohortStrategy):
    """Describes the clients' tables, by sums over clients or by client."""

    models: ClassVar[Literal["global", "own", "none"]] = "none"
    hyper: DescribeHyper

    @staticmethod
    def messages(hyper: DescribeHyper) -> Messages:
        """Return what clients return: sums, or each its own tables."""
        return Messages(
            "single" if hyper.by_client else "statistics",
            own_privacy="it protects its sums itself; set describe.privacy-unit and describe.epsilon",
        )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.hyper.check_with(self.settings)
        self._columns = columns_of(dataset_of(self.settings))
        self._numbers = [one for one in self._columns if one.places and not one.words]
        self._found: dict[str, Any] = {}
        self._private = self.hyper.privacy_unit != "none"

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return no arrays, since nothing is trained."""
        return {}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`, since nothing is trained."""
        raise ConfigurationError("init: method 'describe' trains nothing; leave it out")

    def groups(self) -> dict[str, list[str]]:
        """Return no groups: there is no model to evaluate."""
        return {}

    def finished(self, server_round: int) -> bool:
        """Return true: one round describes everything."""
        return True

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Ask all clients for their sums and counts; write the description.

        All its figures are of the same clients: if some are lost on the way, the others are described anew.
        """
        cohort: Sequence[str] = round.sample()
        while True:
            try:
                self._describe(round, cohort)
            except OtherClientsError as fewer:
                lost = sorted({*cohort} - {*fewer.clients})
                names = ", ".join(self.clients[client].name or client for client in lost)
                log.warning("describe: %s did not reply to all questions; the description is of the others", names)
                cohort = fewer.clients
                continue
            self._write()
            return {}

    def _describe(self, round: Round, cohort: Sequence[str]) -> None:
        """Describe the rows of those of ``cohort`` that reply to the first question.

        Raises:
            OtherClientsError: if some of these do not reply to a later one.
        """
        self._cohort, self._members = cohort, list[str]()
        d = len(self._numbers)
        center, scale, moments = np.zeros(d), np.ones(d), None
        if not self._private:
            _, parts = self._ask(round, "moments", {}, {"moments": (3, 1 + 2 * d)})
            moments = np.stack([exact.value(one) for one in parts["moments"]])
            whole = exact.value(parts["moments"].sum(axis=0))
            known = whole[1 : 1 + d]
            center = whole[1 + d :] / np.maximum(known, 1)
            # What returns has a bound, which squares of numbers in their own units may exceed.
            plain = np.array([(one.mean, one.std) == (0.0, 1.0) for one in self._numbers], bool)
            unit = np.where(plain & (not self.settings.secure_aggregation), LARGE_UNIT, 1.0)
            _, parts = self._ask(round, "squares", {"center": center, "unit": unit}, {"squares": (d,)})
            squares = parts["squares"] * unit**2
            deviations = np.sqrt(squares.sum(axis=0) / np.maximum(known, 1))
            scale = np.where(deviations > 0, deviations, 1.0)
        shapes = {"cells": (sum(one.cells for one in self._columns),), "lacking": (len(self._columns),)}
        names, parts = self._ask(round, "count", {"center": center, "scale": scale}, shapes)
        lacking = parts["lacking"] > 0.5 if self.hyper.by_client else np.rint(parts["lacking"])
        tables = np.split(parts["cells"], np.cumsum([one.cells for one in self._columns])[:-1], axis=1)
        noise = self._noise() if self._private else 0.0
        if noise and self.hyper.noise == "client":
            noise *= math.sqrt(len(names))
        elif noise:
            tables = [table + draw(self._rng(one), "gaussian", noise, table.shape)
                      for one, table in zip(self._columns, tables, strict=True)]  # fmt: skip
        self._found = {"clients": len(names), "columns": {}, "min_count": self.hyper.min_count}
        if moments is not None:
            self._found["rows"] = int(moments[:, 0].sum())
        extremes = self._extremes(round) if self.hyper.extremes else []
        place, by_name = 0, dict[str, Array]()
        for one, table in zip(self._columns, tables, strict=True):
            sums, bins = None, (0.0, 1.0)
            if one in self._numbers:
                bins = (float(center[place]), float(scale[place]))
                if moments is not None:
                    sums = np.column_stack([moments[:, [1 + place, 1 + d + place]], squares[:, place]])
                    by_name[one.name] = sums
                place += 1
            least = 0 if self._private else self.hyper.min_count
            self._found["columns"][one.name] = column_facts(one, table, sums, bins, least, noise)
            facts = self._found["columns"][one.name]
            if without := int(lacking.sum(axis=0)[len(self._found["columns"]) - 1]):
                facts["clients_without"] = without
            if "known" in facts:
                facts["known_of"] = len(names) - without - facts.get("clients_hiding", 0)
            if extremes and sums is not None:
                facts |= extremes[place - 1]
        if moments is not None and not self.hyper.by_client:
            self._medians(round, known, center, scale)
        if self.hyper.by_client:
            rows = np.zeros(len(names)) if moments is None else moments[:, 0]
            self._found["by_client"] = compared(self._columns, tables, names, self._found["columns"], by_name, rows)
            for own, without in zip(self._found["by_client"].values(), lacking, strict=True):
                for one in (one for one, lost in zip(self._columns, without, strict=True) if lost):
                    own[one.name] |= {"lacking": True, "divergence": None}
        if not self._private and d > 1:
            self._found["correlations"] = self._correlations(round, center, scale)
        if self.hyper.duplicates:
            self._found["shared_rows"] = self._shared(round, int(self._found["rows"]), len(names))
        self._found["problems"] = [*self._mixed_dates(), *problems(self._found)]

    def _medians(self, round: Round, known: Array, center: Array, scale: Array) -> None:
        """Find the medians by sums over all clients, in place of those that are read from bins."""

        def below(edges: Array) -> Array:
            _, parts = self._ask(round, "below", {"edges": edges}, {"below": edges.shape})
            return np.rint(parts["below"][0])

        found, errors = medians(below, known, center, scale, self.hyper.min_count)
        for one, median, error in zip(self._numbers, found, errors, strict=True):
            facts = self._found["columns"][one.name]
            if facts["mean"] is not None:
                facts |= {"median": one.mean + one.std * float(median), "median_error": abs(one.std) * float(error)}

    def _scales(self) -> Fitted:
        """Return what can be fitted by runs that train (key ``fitted-scales``)."""
        numbers, categories = dict[str, Number](), dict[str, str]()
        for one in self._columns:
            facts = self._found["columns"][one.name]
            if one.words and one.places:
                counts = {word: count or 0 for word, count in facts["counts"].items() if word}
                if any(count > 0 for count in counts.values()):
                    categories[one.name] = max(counts, key=lambda word: counts[word])
            elif one in self._numbers and facts["mean"] is not None and facts["deviation"] > 0:
                known = facts.get("known") or self._found.get("rows", 0)  # hidden where few rows lack a value
                spread = facts["deviation"] * (math.sqrt((known - 1) / known) if known > 1 else 1.0)
                quantile = (facts["quantiles"] or {}).get("0.5")
                numbers[one.name] = Number(mean=facts["mean"], deviation=spread, median=facts.get("median", quantile))
        return Fitted(numbers=numbers, categories=categories)

    def _mixed_dates(self) -> list[str]:
        """Return what was noted of dates when the rows were read; on devices each reads its own."""
        notes = self.federation.remarks(self.clients.deployed).lines
        return [note.removeprefix("dataset: ") for note in notes if MIXED in note]

    def _extremes(self, round: Round) -> list[dict[str, Any]]:
        """Return for each column of numbers its least and largest value, of the clients that may say it."""
        d = len(self._numbers)
        _, parts = self._ask(round, "extremes", {}, {"extremes": (2, d), "told": (d,)})
        told, found = parts["told"] > 0, []
        for j, one in enumerate(self._numbers):
            values = parts["extremes"][told[:, j], :, j]
            least, most = (float(values[:, 0].min()), float(values[:, 1].max())) if len(values) else (np.nan, np.nan)
            found.append({
                "min": one.mean + one.std * least if len(values) else None,
                "max": one.mean + one.std * most if len(values) else None, "extremes_of": len(values),
            })  # fmt: skip
        return found

    def _shared(self, round: Round, rows: int, clients: int) -> dict[str, Any]:
        """Return how many pairs of clients and rows are equal, less what chance makes equal, and that number's error.

        Each client marks the places of its rows' keyed hashes among B. Marks of two clients at one place are a row of
        both, or chance: Σ_{k<l} n_k n_l / B in expectation, a Poisson number.
        """
        bits = int(np.clip(np.ceil(2 * np.log2(max(rows, 1))) - 1, 10, MOST_BITS))
        shapes = {"marks": (2**bits,), "squares": (), "keyed": ()}
        outcome = round.ask("marks", self._cohort, send={}, reduce="sum", shapes=shapes, bits=bits)
        self._cohort = self._members = same_members(self._members, outcome)
        marks = np.rint(outcome.arrays["marks"])
        squares, keyed = float(outcome.arrays["squares"]) * SQUARES, int(np.rint(outcome.arrays["keyed"]))
        chance = max(float(marks.sum()) ** 2 - squares, 0.0) / 2 ** (bits + 1)
        pairs = float((marks * (marks - 1)).sum() / 2) - chance
        count, error = max(int(np.rint(pairs)), 0), 1.96 * math.sqrt(chance)
        if 0 < keyed < clients:
            log.warning(
                "describe: %d of %d clients have a key for hashes of rows, which then do not match", keyed, clients
            )
        hidden = 0 < count < self.hyper.min_count
        return {"pairs": None if hidden else count, "error": error, "keyed": keyed == clients}

    def _ask(
        self, round: Round, phase: str, sent: Arrays, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[list[str], Arrays]:
        """Return who replied, and their arrays with a leading axis: of clients, or of 1 for their sum."""
        stacked = self.hyper.by_client and phase != "products"
        outcome = round.ask(phase, self._cohort, send=sent, reduce="stack" if stacked else "sum", shapes=shapes)
        self._cohort = self._members = same_members(self._members, outcome)
        arrays = outcome.arrays if stacked else {n: one[None] for n, one in outcome.arrays.items()}
        return [self.clients[client].name or client for client in outcome.clients], arrays

    def _correlations(self, round: Round, center: Array, scale: Array) -> dict[str, Any]:
        """Return names and matrix of the correlations of numbers with more than three values, over all clients."""
        names = [one.name for one in self._numbers]
        facts = [self._found["columns"][name] for name in names]
        usable = np.array([facts["mean"] is not None and not facts["few"] for facts in facts])
        sent = {"center": center, "scale": scale, "usable": usable.astype(np.float64)}
        shape = (len(names), len(names))
        _, parts = self._ask(round, "products", sent, {"products": shape, "pairs": shape})
        products, pairs = parts["products"][0], parts["pairs"][0]
        with np.errstate(invalid="ignore", divide="ignore"):
            matrix = products / np.sqrt(pairs * pairs.T)
        kept = np.flatnonzero(usable)
        rows = [[float(x) if np.isfinite(x) else None for x in matrix[i, kept]] for i in kept]
        return {"names": [names[i] for i in kept], "matrix": rows}

    # --------------------------------------------------------------------------------------- privacy

    def _noise(self) -> float:
        """Return σ: a row more or less changes one cell of each of F tables by 1, √F in all."""
        return math.sqrt(len(self._columns)) * multiplier("gaussian", self.hyper.epsilon, self.hyper.delta)

    def _rng(self, column: Described) -> np.random.Generator:
        if self.clients.deployed:
            return secret_generator()
        return numpy_generator(self.settings.seed, "describe", "noise", column.name)

    def guarantee(self) -> dict[str, Any]:
        """Return the privacy guarantee, as in ``summary.json``; empty without privacy."""
        if not self._private:
            return {}
        scale = multiplier("gaussian", self.hyper.epsilon, self.hyper.delta)
        spent = total([Release("gaussian", scale)], self.hyper.delta)
        return {"unit": "example", "epsilon": spent, "delta": self.hyper.delta, "noise": self._noise(), "releases": 1}

    # --------------------------------------------------------------------------------------- results

    def _write(self) -> None:
        folder = self.federation.run.path
        write_text(folder / JSON, json.dumps(self._found, indent=1, ensure_ascii=False) + "\n")
        write_text(folder / SCALES, self._scales().model_dump_json(indent=1) + "\n")
        write_text(folder / HTML, page(self._found, self.settings.dataset))
        log.info("describe: %s, %s and %s are in the run's folder", JSON, HTML, SCALES)
        for line in self._found["problems"][:10]:
            log.warning("describe: %s", line)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the description."""
        return {}, {"found": self._found}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the description."""
        self._found = dict(facts["found"])

    def report(self) -> dict[str, Any]:
        """Return the description, and in a private run the guarantee."""
        return {"description": self._found, **({"privacy": self.guarantee()} if self._private else {})}
