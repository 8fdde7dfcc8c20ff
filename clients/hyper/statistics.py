"""Keys of the statistics: generalised linear models."""

from __future__ import annotations

from typing import Any, Literal

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Section, key
from florilegium.privacy.delta import MOST_DELTA


class GLMHyper(Section):
    """Keys ``glm.*``."""

    columns: str = key(
        "", 'columns of a table that are in the model, separated by commas; "": all inputs', values='columns, ""'
    )
    intercept: Literal["common", "client", "random"] = key(
        "common",
        "one intercept for all clients; a fixed one for each client; or a random one for each client, in a linear "
        "mixed model",
    )
    offset: str = key(
        "",
        'column of numbers whose coefficient is 1, such as the logarithm of an exposure; "": none',
        values='column, ""',
    )
    ridge: float = key(
        0.0,
        "λ: the likelihood is penalised by λ/2 times the sum of squares of the coefficients of encoded inputs",
        ge=0,
    )
    confidence: float = key(0.95, "share of the intervals that hold the true coefficient", gt=0, lt=1)
    tolerance: float = key(
        1e-16,
        "stop when the expected rise of the log-likelihood is below this, in units of 1 + its absolute value",
        gt=0,
    )
    privacy_unit: Literal["example", "none"] = key("none", "unit that the guarantee protects; `none`: no noise")
    epsilon: float = key(1.0, "ε of the whole run", gt=0, where="glm.privacy-unit!=none")
    delta: float = key(1e-06, "δ of the whole run", gt=0, le=MOST_DELTA, where="glm.privacy-unit!=none")
    noise: Literal["server", "client"] = key(
        "server",
        "who adds the noise: the server, to exact sums; or each client, to its own ([more](methods/glm.md#privacy))",
        where="glm.privacy-unit!=none",
    )
    clip: float = key(
        3.0,
        "private runs: norm to which the encoded inputs of a row are clipped, with a 1 for the intercept",
        gt=0,
        where="glm.privacy-unit!=none",
    )
    steps: int = key(
        6,
        "private runs: number of Newton steps, among which ε is divided; linear models take 1",
        ge=1,
        where="glm.privacy-unit!=none",
    )
    target_bound: float = key(
        0.0,
        "private linear and Poisson models: bound to which targets, and means of counts, are clipped, known without "
        "the data",
        ge=0,
        where="glm.privacy-unit!=none",
    )

    def check_with(self, settings: Any) -> None:
        """Check what an exact fit needs.

        Raises:
            ConfigurationError: if not all clients take part, clients scale inputs by themselves, or a private run has
                keys that its guarantee does not cover.
        """
        if settings.participation < 1 or settings.cohort_size or settings.final_participation not in (0.0, 1.0):
            raise ConfigurationError(
                "participation: the sums of an exact fit are over all clients; set participation to 1, cohort-size and "
                "final-participation to 0"
            )
        if settings.standardise == "client":
            raise ConfigurationError(
                "standardise: with 'client' a coefficient would have another unit at every client; set 'federation' or "
                "'none'"
            )
        private = self.privacy_unit != "none"
        if private and self.intercept != "common":
            raise ConfigurationError(
                f"glm.intercept: '{self.intercept}' and glm.privacy-unit do not go together: how far one row moves a "
                "client's own intercept has no bound; set 'common'"
            )
        if private and self.offset:
            raise ConfigurationError("glm.offset: a private run has none, since its rows are clipped; leave it out")
        if private and settings.weight_column:
            raise ConfigurationError("weight-column: in a private run all rows count 1; leave it out")
        if self.intercept == "random" and (self.ridge or settings.weight_column):
            raise ConfigurationError("glm.intercept: 'random' has neither glm.ridge nor weight-column; leave them out")


class DescribeHyper(Section):
    """Keys ``describe.*``."""

    by_client: bool = key(
        True, "whether each client's tables are described beside those of all; with secure sums set it to false"
    )
    min_count: int = key(
        5, "smallest count that is shown; smaller ones are hidden, and others so that subtraction finds none", ge=0
    )
    extremes: bool = key(
        False, "whether clients return the least and the largest number of each column, which are values of single rows"
    )
    duplicates: bool = key(False, "whether rows that several clients hold are counted, by keyed hashes")
    privacy_unit: Literal["example", "none"] = key("none", "unit that the guarantee protects; `none`: no noise")
    epsilon: float = key(1.0, "ε of the whole run", gt=0, where="describe.privacy-unit!=none")
    delta: float = key(1e-06, "δ of the whole run", gt=0, le=MOST_DELTA, where="describe.privacy-unit!=none")
    noise: Literal["server", "client"] = key(
        "server",
        "who adds the noise: the server, to exact sums; or each client, to its own ([more](methods/glm.md#privacy))",
        where="describe.privacy-unit!=none",
    )

    def check_with(self, settings: Any) -> None:
        """Check that all clients take part, and that noise is added to sums over them.

        Raises:
            ConfigurationError: if not.
        """
        if settings.participation < 1 or settings.cohort_size or settings.final_participation not in (0.0, 1.0):
            raise ConfigurationError(
                "participation: a description is of all clients; set participation to 1, cohort-size and "
                "final-participation to 0"
            )
        if self.privacy_unit != "none" and self.by_client:
            raise ConfigurationError("describe.by-client: noise protects sums over all clients; set it to false")
        if self.extremes and not self.by_client:
            raise ConfigurationError(
                "describe.extremes: an extreme is a client's own, not a sum; set describe.by-client"
            )
        if self.privacy_unit != "none" and self.duplicates:
            raise ConfigurationError("describe.duplicates: hashes of rows get no noise; leave it out of a private run")


class SurvivalHyper(Section):
    """Keys ``survival.*``."""

    cox: Literal["stratified", "unstratified", "discrete", "none"] = key(
        "stratified",
        "Cox model with risk sets within clients, or over all clients; a hazard for each public interval; or curves "
        "alone",
    )
    columns: str = key(
        "", 'columns of the Cox model, separated by commas; "": all inputs', values='columns, ""',
        where="survival.cox!=none",
    )  # fmt: skip
    ties: Literal["efron", "breslow"] = key("efron", "how deaths at one time are counted", where="survival.cox!=none")
    group: str = key(
        "",
        'what curves are compared by: `client`, or a column of categories or of 0 and 1; "": one curve',
        values='`client`, column, ""',
    )
    width: float = key(
        0.0, "width of public intervals, to whose ends times are rounded; 0: exact times of events leave clients", ge=0
    )
    horizon: float = key(
        0.0, "end of the last public interval; later times count as censored there", ge=0, where="survival.width!=0"
    )
    confidence: float = key(0.95, "share of the intervals that hold the true coefficient", gt=0, lt=1)
    tolerance: float = key(
        1e-16,
        "stop when the expected rise of the log-likelihood is below this, in units of 1 + its absolute value",
        gt=0,
    )

    def check_with(self, settings: Any) -> None:
        """Check that all clients take part, and that intervals have an end.

        Raises:
            ConfigurationError: if not.
        """
        if settings.participation < 1 or settings.cohort_size or settings.final_participation not in (0.0, 1.0):
            raise ConfigurationError(
                "participation: curves are of all clients; set participation to 1, cohort-size and "
                "final-participation to 0"
            )
        if self.cox == "discrete" and not self.width:
            raise ConfigurationError(
                "survival.width: the discrete model has a hazard for each public interval; give their width, and "
                "survival.horizon"
            )
        if self.width and self.horizon < self.width:
            raise ConfigurationError(
                "survival.horizon: intervals need an end that does not come from the data, of at least "
                f"survival.width (found: {self.horizon:g})"
            )
