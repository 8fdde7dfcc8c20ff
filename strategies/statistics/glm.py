"""Generalised linear models, server side: Newton's steps of sums over all clients, equal to those of a pooled fit.

Round 1 begins with the rows' moments, to centre and scale the inputs, and their products, to leave out columns that are
combinations of others. Each round is a step: the clients' sums of loss, gradient and Hessian at θ, then
θ ← θ + H⁻¹g, halved while the loss rises. The run ends when the expected rise of the likelihood, gᵀH⁻¹g/2, vanishes.
With a random intercept the rounds after that search for the ratio of variances (``models/statistics/mixed.py``). In a
private run sums get noise, and the number of steps is fixed. See ``clients/statistics/glm.py`` for the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.clients.statistics.glm import BIAS, RATIO, WEIGHT
from florilegium.common.errors import ConfigurationError, RunError, nearest
from florilegium.common.seeds import numpy_generator
from florilegium.common.text import listed
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact, mixed
from florilegium.models.statistics.glm import FAMILIES, aliased
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.noise import secret_generator
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.run_folder import Checkpoint
from florilegium.strategies.statistics.estimates import Estimates
from florilegium.strategies.statistics.members import OtherClientsError, same_members
from florilegium.strategies.statistics.private_glm import PrivateGLM

Array = NDArray[np.float64]
log = logging.getLogger("flwr")

INVOLVED = 1e-3
"""A coefficient is part of a direction that separates targets if its share of the largest is above this."""
_HALVINGS = 30
SENT: tuple[str, ...] = ("columns", "center", "scale", "theta", "step", "ratios")
"""What has been agreed and is sent, once it is known."""


class GLM(CohortStrategy):
    """Fits a linear, logistic, Poisson or multinomial model exactly, by sums over clients alone."""

    messages = Messages("statistics", own_privacy="it protects its sums itself; set glm.privacy-unit and glm.epsilon")
    hyper: GLMHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        name = self.task.family
        self.hyper.check_with(self.settings)
        self.family = FAMILIES[name]
        if self.hyper.intercept == "random" and name != "linear":
            raise ConfigurationError(
                f"glm.intercept: 'random' is for linear models, with task = 'regression' (found: a {name} model); set "
                "'client'"
            )
        spec = dataset_of(self.settings)
        try:
            self._features = features_of(spec)
        except ValueError as error:
            raise ConfigurationError(f"dataset: 'glm' needs a table: {error}") from error
        self._classes = [str(word) for word in self.task.strata_names][1:] if name == "multinomial" else [""]
        self._private = PrivateGLM(self.hyper, name) if self.hyper.privacy_unit != "none" else None
        self._columns = self._chosen(spec.name)
        self._own = self.hyper.intercept == "client"
        self._reset()

    def _reset(self) -> None:
        """Begin the fit."""
        self._arrays: Arrays = {"columns": np.array(self._columns, np.int64)}
        self._facts: dict[str, Any] = {
            "stage": "newton", "aliased": [], "separated": [], "course": [], "members": [], "halvings": 0,
        }  # fmt: skip

    def _chosen(self, name: str) -> list[int]:
        """Return the places of the features in the model: those of the chosen columns, without first categories."""
        known, h = list(dict.fromkeys(one.column for one in self._features)), self.hyper
        chosen = listed(h.columns) or [column for column in known if column != h.offset]
        for key, column in (
            *(("glm.columns", one) for one in chosen),
            *([("glm.offset", h.offset)] if h.offset else []),
        ):
            if column not in known:
                raise ConfigurationError(
                    f"{key}: '{column}' is no input column of '{name}'{nearest(column, known)} Known: "
                    f"{', '.join(known[:50])}."
                )
        if h.offset and (h.offset in chosen or not any(one.name == h.offset for one in self._features)):
            raise ConfigurationError(f"glm.offset: '{h.offset}' must hold numbers, and not be in glm.columns")
        return [i for i, one in enumerate(self._features) if one.column in chosen and not one.first]

    # ------------------------------------------------------------------------------------------ model

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays, all zero."""
        return {name: np.zeros_like(array) for name, array in arrays.items()}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`: a fit begins with the data's moments, and has one result."""
        raise ConfigurationError("init: method 'glm' fits exactly, wherever it starts; leave it out")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Take a step; return the network ``linear`` with the new coefficients."""
        if self._private is not None:
            self._noisy(round, self._private)
            return self._network(model)
        try:
            if "theta" not in self._arrays:
                self._begin(round)
            if self._facts["stage"] == "newton":
                self._newton(round)
            elif self._facts["stage"] == "variances":
                self._variances(round)
        except OtherClientsError as error:
            log.warning(
                "round %d: %d clients replied, and %d before: sums of other rows do not go together, so that the fit "
                "begins anew", round.number, len(error.clients), len(self._facts["members"]),
            )  # fmt: skip
            self._reset()
            return model
        return self._network(model)

    def _network(self, model: Arrays) -> Arrays:
        """Return the network's arrays for the present θ."""
        slopes, bias = self._encoded()
        weight = np.zeros(model[WEIGHT].shape)
        first = len(weight) - len(slopes)
        weight[first:, self._arrays["columns"]] = slopes
        biases = np.concatenate([np.zeros(first), bias])
        if self.hyper.offset:
            place = next(i for i, one in enumerate(self._features) if one.name == self.hyper.offset)
            weight[first:, place] = self._features[place].std
            biases[first:] += self._features[place].mean
        return {WEIGHT: weight.astype(np.float32), BIAS: biases.astype(np.float32)}

    def _encoded(self) -> tuple[Array, Array]:
        """Return slopes (m, d) and intercepts (m,) for encoded inputs; of clients' own intercepts their mean."""
        θ, c, s = (self._arrays[name] for name in ("theta", "center", "scale"))
        slopes = (θ if self._own else θ[:, 1:]) / s
        intercepts = self._arrays["intercepts"] if self._own else θ[:, 0]
        return slopes, intercepts - slopes @ c

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test the model, with the ratio of variances that their random intercepts need."""
        ratio = {RATIO: np.asarray(self._facts["ratio"])} if "ratio" in self._facts else {}
        return super().measure(round, clients, model | ratio)

    # ------------------------------------------------------------------------------------------ rounds

    def ask(self, round: Round, phase: str, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        """Have all clients carry out ``phase`` on what has been agreed; return the sums of what they return."""
        sent: Arrays = {name: self._arrays[name] for name in SENT if name in self._arrays}
        outcome = round.ask(phase, round.sample(), send=sent, reduce="sum", shapes=shapes)
        if self._private is None:  # noisy steps go on with whoever replies
            self._facts["members"] = same_members(self._facts["members"], outcome)
        else:
            self._facts["members"] = [*outcome.clients]
        return outcome.arrays

    def _noisy(self, round: Round, private: PrivateGLM) -> None:
        if "theta" not in self._arrays:
            m = self.task.num_strata - 1 if self.task.num_strata else 1
            self._arrays |= private.start(len(self._arrays["columns"]), m)
        rng = (
            secret_generator() if self.clients.deployed
            else numpy_generator(self.settings.seed, "glm", "noise", round.number)
        )  # fmt: skip

        def ask(phase: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Arrays, int]:
            return self.ask(round, phase, shapes), len(self._facts["members"])

        self._arrays |= private.step(ask, self._arrays["theta"], rng)

    def _begin(self, round: Round) -> None:
        """Agree on centre and scale of the columns, and leave out those that are combinations of others."""
        columns, m = self._arrays["columns"], len(self._classes)
        d = len(columns)
        total = exact.value(self.ask(round, "moments", {"moments": (3, 2 + d + m)})["moments"])
        rows, weight = int(total[0]), float(total[1])
        if weight <= 0:
            raise RunError("glm: no client has a row with a weight above 0")
        center, means = total[2 : 2 + d] / weight, total[2 + d :] / weight
        self._arrays["center"] = center
        spread = self.ask(round, "spread", {"spread": (d,)})["spread"] / weight
        self._arrays["scale"] = np.where(spread > 0, spread, 1.0)
        products = self.ask(round, "products", {"products": (d, d)})["products"]
        drop = aliased(products) if not self.hyper.ridge else np.diag(products) <= 0
        names = [self._features[i].name for i in columns]
        lost = [name for name, one in zip(names, drop, strict=True) if one]
        self._facts |= {
            "rows": rows,
            "weight": weight,
            "aliased": lost,
        }
        if drop.any():
            log.warning(
                "glm: %d of %d columns are constant or combinations of others before them, and have no coefficient: %s",
                len(lost), d, ", ".join(lost[:20]),
            )  # fmt: skip
        own = len(self._facts["members"]) if self._own else 1
        free = rows - m * (int((~drop).sum()) + own)
        if free <= 0 and not self.hyper.ridge:
            raise RunError(
                f"glm: {rows} rows of all clients do not suffice for {rows - free} coefficients; choose fewer "
                "glm.columns, or set glm.ridge"
            )
        keep = ~drop
        θ = np.zeros((m, int(keep.sum()) + (not self._own)))
        if not self._own:
            θ[:, 0] = self.family.link(means)
        self._arrays |= {
            "columns": columns[keep], "center": center[keep], "scale": self._arrays["scale"][keep], "theta": θ,
            "step": np.zeros_like(θ), "intercepts": np.zeros(m),
        }  # fmt: skip

    def _newton(self, round: Round) -> None:
        facts, θ = self._facts, self._arrays["theta"]
        m, size = len(θ), θ.size
        one: dict[str, tuple[int, ...]] = dict.fromkeys(("loss", "against", "towards", "constant", "inside"), ())
        found = self.ask(round, "newton", one | {"gradient": (size,), "hessian": (size, size), "intercepts": (m,)})
        penalty, flat = self._estimates.penalty(), θ.ravel()
        loss = float(found["loss"]) + 0.5 * float(penalty @ flat**2)
        before = facts["course"][-1] if facts["course"] else None
        if before is not None and loss > before + 1e-9 * (1 + abs(before)) and facts["halvings"] < _HALVINGS:
            self._arrays["step"] = self._arrays["step"] / 2
            self._arrays["theta"] = θ - self._arrays["step"]
            facts["halvings"] += 1
            return
        facts["course"].append(loss)
        facts["halvings"] = 0
        self._arrays |= {"hessian": found["hessian"]}
        if self._own:
            self._arrays["intercepts"] = found["intercepts"] / max(float(found["inside"]), 1.0)
        facts |= {"loss": float(found["loss"]), "constant": float(found["constant"])}
        if found["towards"] > 0 and found["against"] == 0 and not self.hyper.ridge:
            self._separated()
            return
        gradient = found["gradient"] - penalty * flat
        step = np.linalg.lstsq(found["hessian"] + np.diag(penalty), gradient, rcond=1e-14)[0]
        self._arrays |= {"theta": θ + step.reshape(θ.shape), "step": step.reshape(θ.shape)}
        if 0.5 * float(gradient @ step) < self.hyper.tolerance * (1 + abs(loss)):
            facts["stage"] = "variances" if self.hyper.intercept == "random" else "done"
            if facts["stage"] == "variances":
                self._arrays["ratios"] = mixed.first_ratios()

    def _separated(self) -> None:
        """End the fit: the last step's direction separates the targets, so that its coefficients have no estimate."""
        transform = self._estimates.transform()
        step = np.abs(self._arrays["step"] @ transform.T) / np.abs(np.diag(transform))
        involved = (step > INVOLVED * step.max()).any(axis=0)
        self._facts |= {"stage": "done", "separated": np.flatnonzero(involved).tolist()}
        names = [name for name, one in zip(self._estimates.names(), involved, strict=True) if one]
        log.warning(
            "glm: %s separate the targets: the likelihood rises for ever along them, and their coefficients have no "
            "finite estimate. Leave columns out (glm.columns), or set glm.ridge", ", ".join(names[:20]),
        )  # fmt: skip

    def _variances(self, round: Round) -> None:
        ratios, q = self._arrays["ratios"], self._arrays["theta"].size
        found = self.ask(round, "variances", {"products": (len(ratios), q + 1, q + 1), "determinants": (len(ratios),)})
        fits = [
            mixed.fit(products, float(determinant), self._facts["rows"])
            for products, determinant in zip(found["products"], found["determinants"], strict=True)
        ]
        best = int(np.argmax([fit.likelihood for fit in fits]))
        closer = mixed.next_ratios(ratios, best)
        if closer is not None:
            self._arrays["ratios"] = closer
            return
        fit, ratio = fits[best], float(ratios[best])
        self._arrays["theta"] = self._arrays["theta"] + fit.coefficients
        self._arrays["covariance"] = fit.covariance
        self._facts |= {
            "stage": "done", "ratio": ratio, "dispersion": fit.variance,
            # Of columns in their own units, on which a restricted likelihood depends.
            "likelihood": fit.likelihood + float(np.linalg.slogdet(self._estimates.transform())[1]),
            "boundary": best == 0 or not mixed.SMALLEST < np.log10(ratio) < mixed.LARGEST,
        }  # fmt: skip
        if self._facts["boundary"]:
            log.warning("glm: the variance of the random intercept is at the edge of what is possible: %g", ratio)

    def finished(self, server_round: int) -> bool:
        """Return whether the fit has converged, or in a private run all its steps are taken."""
        done = self._private.finished(server_round) if self._private else self._facts["stage"] == "done"
        return done or super().finished(server_round)

    # ----------------------------------------------------------------------------------------- results

    @property
    def _estimates(self) -> Estimates:
        """What has been estimated so far."""
        return Estimates(
            self.hyper, self.task.family, [self._features[i] for i in self._arrays["columns"]], self._classes,
            self._arrays, self._facts, private=self._private is not None,
        )  # fmt: skip

    def summary(self) -> None:
        """Log the model and its privacy cost."""
        super().summary()
        log.info(
            "glm: %s model of %d columns, intercept: %s", self.task.family, len(self._arrays["columns"]),
            self.hyper.intercept,
        )  # fmt: skip
        if self._private is not None:
            again = bool(self.settings.resume) and self.clients.deployed
            self._private.begin(self.settings.rounds, resumed_on_devices=again)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the fit so far."""
        return {**self._arrays}, {**self._facts}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the fit so far."""
        self._arrays, self._facts = dict(arrays), dict(facts)

    def report(self) -> dict[str, Any]:
        """Return the results, and in a private run the guarantee."""
        found = self._estimates.fitted()
        for line in found.get("coefficients", ())[:100]:
            if line["coefficient"] is not None:
                log.info("%-40s %12.6g, standard error %.4g, p = %.3g, %.4g to %.4g", *(
                    line[word] if line[word] is not None else float("nan")
                    for word in ("name", "coefficient", "standard_error", "p", "low", "high")
                ))  # fmt: skip
        if found and not self._private and not found["converged"] and not found["separated"]:
            log.warning("glm: the fit has not converged in %d rounds; raise rounds", self.settings.rounds)
        return {"glm": found, **({"privacy": self._private.guarantee()} if self._private else {})}
