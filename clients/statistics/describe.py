"""Descriptions of tables, client side: counts of values, and sums of numbers, of the client's training rows.

Where each client is described by itself, it hides what is too small before anything leaves it.
"""

from __future__ import annotations

import math
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.statistics import DescribeHyper
from florilegium.clients.statistics.private import charge, noisy, own_unit
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact
from florilegium.models.statistics.suppression import hidden, shown
from florilegium.partitions.described_columns import Described, columns_of
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.accounting import multiplier

Array = NDArray[np.float64]

FEW = 3
"""Count, mean and deviation of a column of this many values give away how often each occurs."""


SQUARES = 2.0**20
"""Unit of squares of numbers of rows, which keeps them within the range of secure sums."""


class DescribeClient(BaseClient):
    """Counts and adds up its training rows."""

    training = Training("it protects its sums itself; set describe.privacy-unit and describe.epsilon")
    uses_finetuning = "never"
    augments = False
    by_column = True
    hyper: DescribeHyper

    @classmethod
    def own_unit(cls, hyper: DescribeHyper) -> str:
        """Return the unit that clients' own noise protects; "none" if they add none."""
        return own_unit(hyper)

    @phase
    def moments(self, arrays: Arrays) -> Answer:
        """Return ``moments`` (3, 1 + 2d): exact parts of the number of rows, known values, and sums of d numbers.

        Numbers whose sum would give a small count away count as unknown.
        """
        known = self._known
        values = np.column_stack([np.ones(len(known)), known, np.where(known, self._numbers, 0.0)])
        return Answer({"moments": exact.parts(values)}, len(known))

    @phase
    def squares(self, arrays: Arrays) -> Answer:
        """Return ``squares`` (d,), the sums of ((x − center) / unit)²."""
        centred = np.where(self._known, (self._numbers - arrays["center"]) / arrays["unit"], 0.0)
        return Answer({"squares": (centred**2).sum(axis=0)}, len(centred))

    @phase
    def products(self, arrays: Arrays) -> Answer:
        """Return ``products`` (d, d), Σ zzᵀ of z = (x − center) / scale, 0 where unknown; ``pairs``, Σ z²[known]ᵀ."""
        known = self._known & arrays["usable"].astype(bool)
        z = np.where(known, (self._numbers - arrays["center"]) / arrays["scale"], 0.0)
        return Answer({"products": z.T @ z, "pairs": (z**2).T @ known.astype(np.float64)}, len(z))

    @phase
    def count(self, arrays: Arrays) -> Answer:
        """Return ``cells`` (N,), the tables of all columns one after the other; small counts are hidden.

        ``lacking`` (C,) is 1 for columns that the client lacks, or whose owner withholds them; they count no row.
        """
        center, scale = iter(arrays["center"]), iter(arrays["scale"])
        tables = []
        for one in self._columns:
            numbers = bool(one.places) and not one.words
            table = one.count(self._x, self._y, next(center) if numbers else 0, next(scale) if numbers else 1)
            table = np.zeros_like(table) if one.name in self.data.terms.lacking else table
            tables.append(shown(table, self.hyper.min_count) if self.hyper.by_client else table)
        cells, h = np.concatenate(tables), self.hyper
        if h.privacy_unit != "none":
            each = multiplier("gaussian", h.epsilon, h.delta)
            charge(self, h, each, 1)
            cells = noisy(self, h, "cells", cells, math.sqrt(len(self._columns)) * each)
        lacking = np.array([float(one.name in self.data.terms.lacking) for one in self._columns])
        return Answer({"cells": cells, "lacking": lacking}, len(self._x))

    @phase
    def extremes(self, arrays: Arrays) -> Answer:
        """Return ``extremes`` (2, d), least and largest numbers, and ``told`` (d,), whether it may say them.

        It may not where fewer than ``min-count`` rows have a number, other sums are hidden, or the owner forbids it.
        """
        known = self._known
        told = (known.sum(axis=0) >= max(self.hyper.min_count, 1)) & self.data.terms.extremes
        least, most = (
            np.where(told, end(np.where(known, self._numbers, beyond), axis=0, initial=beyond), 0.0)
            for end, beyond in ((np.min, np.inf), (np.max, -np.inf))
        )
        return Answer({"extremes": np.stack([least, most]), "told": told.astype(np.float64)}, len(known))

    @phase
    def below(self, arrays: Arrays) -> Answer:
        """Return ``below`` (E, d), how many rows have a number of at most each of the received ``edges`` (E, d)."""
        known, edges = self._known, arrays["edges"]
        counts = np.zeros(edges.shape)
        for j in range(edges.shape[1]):
            counts[:, j] = np.searchsorted(np.sort(self._numbers[known[:, j], j]), edges[:, j], side="right")
        return Answer({"below": counts}, len(known))

    @phase
    def marks(self, arrays: Arrays, *, bits: int) -> Answer:
        """Return ``marks`` (2^bits,), 1 at the places of the keyed hashes of the client's rows, else 0.

        ``squares`` () is the square of their number, in units of :data:`SQUARES`; ``keyed`` () whether the key is one
        that the server does not know.
        """
        secret = self.data.terms.row_key
        key = blake2b(secret or f"{self.settings.seed}: rows".encode(), digest_size=32).digest()
        train, marks = self.data.train, np.zeros(2**bits)
        for x, y in zip(train.x.numpy(force=True), train.y.numpy(force=True), strict=True):
            hashed = blake2b(x.tobytes() + y.tobytes(), digest_size=8, key=key).digest()
            marks[int.from_bytes(hashed, "big") % len(marks)] = 1.0
        squares = np.asarray(marks.sum() ** 2 / SQUARES)
        return Answer({"marks": marks, "squares": squares, "keyed": np.asarray(float(bool(secret)))}, len(train))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since clients have no model to train."""
        raise RunError("method 'describe' trains no models of clients")

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since clients have no model to test."""
        raise RunError("method 'describe' makes no models of clients")

    # --------------------------------------------------------------------------------------- details

    @cached_property
    def _columns(self) -> list[Described]:
        return columns_of(dataset_of(self.settings))

    @cached_property
    def _x(self) -> Array:
        x: Array = self.data.train.x.double().numpy(force=True)
        return x

    @cached_property
    def _y(self) -> NDArray[np.int64]:
        return self.task.strata(self.data.train.y.numpy(force=True))

    @property
    def _of_numbers(self) -> list[Described]:
        return [one for one in self._columns if one.places and not one.words]

    @cached_property
    def _numbers(self) -> Array:
        """The numbers, (n, d)."""
        return self._x[:, [one.places[0] for one in self._of_numbers]]

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        """Which numbers are there and may be added up, (n, d).

        A column is left out if sums of its few values, or how many there are, would give a small count away.
        """
        lacking = [one.lacks(self._x) | (one.name in self.data.terms.lacking) for one in self._of_numbers]
        known = ~np.stack(lacking, axis=1) if lacking else np.zeros((len(self._x), 0), bool)
        if not self.hyper.by_client:
            return known
        for j in range(known.shape[1]):
            counts = np.unique(self._numbers[known[:, j], j], return_counts=True)[1]
            counts = counts if len(counts) <= FEW else np.array([counts.sum()])
            table = np.append(counts, (~known[:, j]).sum()).astype(np.float64)
            if hidden(table, self.hyper.min_count).any():
                known[:, j] = False
        return known
