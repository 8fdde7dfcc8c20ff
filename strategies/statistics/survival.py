"""Survival, server side: curves, log-rank tests and Cox models, equal to those of all rows in one place.

Round 1 agrees on a grid of times and counts who is at risk; every round is a Newton step of the Cox model. Stratified
by client, a client's risk sets are its own, and clients return loss, gradient and Hessian. Unstratified, they return
the sums at each time of the grid. The grid has the ends of public intervals or, without them, all times of events.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import SurvivalHyper
from florilegium.common.errors import ConfigurationError, RunError, nearest
from florilegium.common.text import listed
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact
from florilegium.models.statistics.discrete import alpha_step, first_alpha, without_alpha
from florilegium.models.statistics.glm import aliased
from florilegium.models.statistics.inference import table
from florilegium.models.statistics.survival import cox, curve, log_rank
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint
from florilegium.strategies.statistics.members import OtherClientsError, same_members

Array = NDArray[np.float64]
log = logging.getLogger("flwr")

WEIGHT, BIAS = "fc.1.weight", "fc.1.bias"
_HALVINGS, _PATIENCE, _STILL = 30, 8, 0.2
"""Most halvings of a step; rounds after which a step of this size that lowers the loss by nothing has no end."""


class Survival(CohortStrategy):
    """Estimates survival curves and Cox models from numbers at risk and sums over clients."""

    hyper: SurvivalHyper

    @staticmethod
    def messages(hyper: SurvivalHyper) -> Messages:
        """Return what clients return: sums; without public intervals, also each its times of events."""
        own = "a row's sums have no bound, so that no noise would protect it"
        return Messages("statistics" if hyper.width else "single", own_privacy=own)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.hyper.check_with(self.settings)
        spec = dataset_of(self.settings)
        try:
            self._features = features_of(spec)
        except ValueError as error:
            raise ConfigurationError(f"dataset: 'survival' needs a table: {error}") from error
        known = list(dict.fromkeys(one.column for one in self._features))
        chosen, group = listed(self.hyper.columns) or known, self.hyper.group
        asked = [*(("columns", one) for one in chosen), *([("group", group)] if group not in ("", "client") else [])]
        for key, name in asked:
            if name not in known:
                raise ConfigurationError(
                    f"survival.{key}: '{name}' is no input column of '{spec.name}'{nearest(name, known)} Known: "
                    f"{', '.join(known[:50])}."
                )
        if spec.table and group in spec.table.dates:
            raise ConfigurationError(
                f"survival.group: '{group}' holds dates; name a column of categories or of 0 and 1"
            )
        missing = f"{group} missing"
        self._group_places = [i for i, one in enumerate(self._features) if one.column == group and one.name != missing]
        self._columns = [i for i, one in enumerate(self._features) if one.column in chosen and not one.first]
        self._reset()

    def _reset(self) -> None:
        """Begin with nothing known."""
        self._arrays: Arrays = {"columns": np.array(self._columns, np.int64)}
        self._facts: dict[str, Any] = {
            "done": False, "course": [], "members": [], "halvings": 0, "aliased": [], "diverging": []
        }  # fmt: skip

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays, all zero."""
        return {name: np.zeros_like(array) for name, array in arrays.items()}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`: a fit has one result, wherever it starts."""
        raise ConfigurationError("init: method 'survival' fits exactly, wherever it starts; leave it out")

    # ------------------------------------------------------------------------------------------ rounds

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Count who is at risk, in round 1; take a step of the Cox model; return the network ``linear``."""
        try:
            self._advance(round)
        except OtherClientsError as error:
            log.warning(
                "round %d: %d clients replied, and %d before: sums of other rows do not go together, so that all "
                "begins anew", round.number, len(error.clients), len(self._facts["members"]),
            )  # fmt: skip
            self._reset()
            return model
        weight = np.zeros(model[WEIGHT].shape)
        if "beta" in self._arrays:
            weight[0, self._arrays["columns"]] = self._arrays["beta"] / self._arrays["scale"]
        return {WEIGHT: weight.astype(np.float32), BIAS: np.zeros_like(model[BIAS])}

    def _advance(self, round: Round) -> None:
        if "grid" not in self._arrays:
            self._arrays["grid"] = self._grid(round)
            self._count(round)
            if self.hyper.cox == "none":
                self._facts["done"] = True
            else:
                self._begin(round)
        if not self._facts["done"]:
            self._step(round)

    def finished(self, server_round: int) -> bool:
        """Return whether the Cox model has converged, or cannot."""
        return bool(self._facts["done"]) or super().finished(server_round)

    def _grid(self, round: Round) -> Array:
        """Return the common times, (T,): ends of public intervals, or all times of events."""
        if self.hyper.width:
            number = int(np.ceil(self.hyper.horizon / self.hyper.width - 1e-9))
            return np.asarray(self.hyper.width * np.arange(1, number + 1), np.float64)
        length = max(self.clients[client].train for client in self.trainable())
        found = round.ask("events", round.sample(), send={}, reduce="stack", shapes={"times": (length,)}, length=length)
        self._facts["members"] = same_members(self._facts["members"], found)
        times = np.unique(found.arrays["times"])
        if not (times > 0).any():
            raise RunError("survival: no client has an event; without one there is nothing to estimate")
        grid: Array = times[times > 0]
        return grid

    def _count(self, round: Round) -> None:
        group, T = self.hyper.group, len(self._arrays["grid"])
        cohort = round.sample()
        own = self._group_places
        places = np.array(own if group not in ("", "client") else [], np.int64)
        if group == "client":
            words = [self.clients[client].name or client for client in cohort]
        elif len(own) > 1:
            words = [self._features[i].name for i in own]
        else:
            words = [f"{group} = 0", f"{group} = 1"] if own else ["all"]
        shapes = {"at_risk": (len(words), T), "deaths": (len(words), T)}
        scatter = {"group": np.arange(len(cohort), dtype=np.float64)} if group == "client" else None
        outcome = round.ask(
            "count", cohort, send={"grid": self._arrays["grid"], "places": places}, scatter=scatter, reduce="sum",
            shapes=shapes, number=len(words), by_client=group == "client",
        )  # fmt: skip
        self._facts["members"] = same_members(self._facts["members"], outcome)
        at_risk, deaths = outcome.arrays["at_risk"], outcome.arrays["deaths"]
        if np.rint(deaths.sum()) <= 0:
            raise RunError("survival: no client has an event; without one there is nothing to estimate")
        curves = {word: curve(n, d, self._arrays["grid"]) for word, n, d in zip(words, at_risk, deaths, strict=True)}
        self._facts["curves"] = curves
        if len(words) > 1:
            self._facts["log_rank"] = log_rank(at_risk, deaths)
        self._facts |= {"clients": len(outcome.clients), "events": int(np.rint(deaths.sum()))}
        if self.hyper.cox == "discrete":  # intervals without a death have no finite α, and tell nothing of β
            n, dead = np.rint(at_risk.sum(axis=0)), np.rint(deaths.sum(axis=0))
            some = dead > 0
            self._arrays |= {"grid": self._arrays["grid"][some], "alpha": first_alpha(n[some], dead[some])}

    def _begin(self, round: Round) -> None:
        """Agree on center and scale of the columns, and leave out those that do not vary within risk sets."""
        d = len(self._arrays["columns"])
        total = exact.value(self._ask(round, "moments", {"moments": (3, 1 + d)})["moments"])
        self._facts["rows"] = int(total[0])
        self._arrays["center"] = total[1:] / total[0]
        spread = self._ask(round, "spread", {"spread": (d,)})["spread"] / total[0]
        self._arrays |= {"scale": np.where(spread > 0, spread, 1.0), "beta": np.zeros(d)}
        drop = aliased(self._sums(round)["hessian"])
        names = [self._features[i].name for i in self._arrays["columns"]]
        self._facts["aliased"] = [name for name, one in zip(names, drop, strict=True) if one]
        if drop.any():
            log.warning(
                "survival: %d of %d columns do not vary among those at risk, or are combinations of others before, "
                "and have no coefficient: %s", drop.sum(), d, ", ".join(self._facts["aliased"][:20]),
            )  # fmt: skip
        if drop.all():
            raise RunError("survival: no column varies among those at risk when an event happens; choose others")
        self._arrays |= {name: self._arrays[name][~drop] for name in ("columns", "center", "scale", "beta")}
        self._arrays["step"] = np.zeros_like(self._arrays["beta"])

    def _ask(self, round: Round, phase: str, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        sent = {name: array for name, array in self._arrays.items() if name not in ("step", "hessian", "alpha_step")}
        outcome = round.ask(phase, round.sample(), send=sent, reduce="sum", shapes=shapes)
        self._facts["members"] = same_members(self._facts["members"], outcome)
        return outcome.arrays

    def _sums(self, round: Round) -> Arrays:
        """Return loss, gradient and Hessian of the partial likelihood over all clients."""
        q, T = len(self._arrays["beta"]), len(self._arrays["grid"])
        if self.hyper.cox == "stratified":
            return self._ask(round, "stratum", {"loss": (), "gradient": (q,), "hessian": (q, q)})
        if self.hyper.cox == "discrete":
            shapes = {"loss": (), "gradient": (q,), "hessian": (q, q), "alpha_gradient": (T,), "diagonal": (T,)}
            return without_alpha(self._ask(round, "periods", shapes | {"cross": (T, q)}))
        by_time = {f"{name}{order}": (T, *(q,) * order) for name in "rd" for order in range(3)}
        return cox(self._ask(round, "risks", by_time | {"events": (T,), "total": (q,), "score": ()}), self.hyper.ties)

    def _step(self, round: Round) -> None:
        facts, β = self._facts, self._arrays["beta"]
        found = self._sums(round)
        loss, before = float(found["loss"]), facts["course"][-1] if facts["course"] else None
        if before is not None and loss > before + 1e-9 * (1 + abs(before)) and facts["halvings"] < _HALVINGS:
            self._arrays["step"] = self._arrays["step"] / 2
            self._arrays["beta"] = β - self._arrays["step"]
            if "alpha_step" in self._arrays:
                self._arrays["alpha_step"] = self._arrays["alpha_step"] / 2
                self._arrays["alpha"] = self._arrays["alpha"] - self._arrays["alpha_step"]
            facts["halvings"] += 1
            return
        facts["course"].append(loss)
        facts |= {"halvings": 0, "loss": loss}
        self._arrays["hessian"] = found["hessian"]
        step = np.linalg.lstsq(found["hessian"], found["gradient"], rcond=1e-14)[0]
        large = np.abs(step) > _STILL
        if before is not None and len(facts["course"]) > _PATIENCE and large.any() and before - loss < 1e-3:
            names = [self._features[i].name for i in self._arrays["columns"]]
            facts |= {"done": True, "diverging": [name for name, one in zip(names, large, strict=True) if one]}
            log.warning(
                "survival: the coefficients of %s grow without an end: no event happens on one side of them. Leave "
                "these columns out (survival.columns)", ", ".join(facts["diverging"][:20]),
            )  # fmt: skip
            return
        self._arrays |= {"beta": β + step, "step": step}
        rise = float(found["gradient"] @ step)
        if "diagonal" in found:
            more = alpha_step(found, step)
            self._arrays |= {"alpha": self._arrays["alpha"] + more, "alpha_step": more}
            rise += float(found["alpha_gradient"] ** 2 @ (1 / found["diagonal"]))
        facts["done"] = 0.5 * rise < self.hyper.tolerance * (1 + abs(loss))

    # ----------------------------------------------------------------------------------------- results

    def fitted(self) -> dict[str, Any]:
        """Return the Cox model: coefficients in the columns' units, hazard ratios, likelihood; {} without one."""
        if "hessian" not in self._arrays:
            return {}
        units = np.array([self._features[i].std for i in self._arrays["columns"]]) * self._arrays["scale"]
        names = [self._features[i].name for i in self._arrays["columns"]]
        diverging = np.isin(names, self._facts["diverging"])
        covariance = np.zeros_like(self._arrays["hessian"])
        inner = np.ix_(~diverging, ~diverging)
        covariance[inner] = np.linalg.pinv(self._arrays["hessian"][inner], rcond=1e-14, hermitian=True)
        lines = table(names, self._arrays["beta"] / units, covariance / np.outer(units, units), self.hyper.confidence)
        for line, lost in zip(lines, diverging, strict=True):
            if lost:
                line.update(dict.fromkeys([*line][1:]))
            line["hazard_ratio"] = None if lost else float(np.exp(line["coefficient"]))
        return {
            "cox": self.hyper.cox, "ties": self.hyper.ties, "coefficients": lines,
            "log_likelihood": -self._facts["loss"], "rows": self._facts["rows"],
            "without_coefficient": self._facts["aliased"], "diverging": self._facts["diverging"],
            "converged": bool(self._facts["done"]) and not self._facts["diverging"],
        }  # fmt: skip

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the fit so far."""
        return {**self._arrays}, {**self._facts}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the fit so far."""
        self._arrays, self._facts = dict(arrays), dict(facts)

    def report(self) -> dict[str, Any]:
        """Return curves, log-rank test and Cox model."""
        facts, found = self._facts, self.fitted()
        for line in found.get("coefficients", ()):
            if line["coefficient"] is not None:
                log.info("%-40s %12.6g, hazard ratio %.4g, p = %.3g", *(
                    line[word] if line[word] is not None else float("nan")
                    for word in ("name", "coefficient", "hazard_ratio", "p")
                ))  # fmt: skip
        if found and not found["converged"] and not found["diverging"]:
            log.warning("survival: the fit has not converged in %d rounds; raise rounds", self.settings.rounds)
        told = {name: facts[name] for name in ("clients", "events", "curves", "log_rank") if name in facts}
        return {"survival": {**told, "width": self.hyper.width, **({"model": found} if found else {})}}
