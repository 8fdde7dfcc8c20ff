"""The configuration keys of rounds, aggregation, evaluation and output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, SerializeAsAny, ValidationInfo, field_validator

from florilegium.clients.core.settings import SharedSettings
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import NAME, NoHyper, Section, key, parse_numbers
from florilegium.partitions.settings import FederationSettings
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.settings.buffer import BufferSettings
from florilegium.strategies.settings.fleet import FleetSettings
from florilegium.strategies.settings.robust import RobustSettings

OPTIONAL_NAME = rf"^({NAME})?$"
BETAS: Mapping[str, Sequence[float]] = {"fedadagrad": (0.0,), "fedadam": (0.9, 0.99), "fedyogi": (0.9, 0.99)}
"""β₁, and β₂ where there is one, of the adaptive server optimizers in the experiments of Reddi et al. 2021."""


def _check_attackers(value: float | str) -> float | str:
    if isinstance(value, str) and not all(value.split(",")):
        raise ValueError(f"'{value}' is not a list of clients such as '3,7'")
    if isinstance(value, float) and not 0 <= value < 1:
        raise ValueError(f"{value:g} is not a share of clients below 1; a number of clients is written as {value:.0f}")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{value} is not a number of clients ≥ 0")
    return value


class ServerSettings(FederationSettings, SharedSettings):
    """Keys that only the server reads, besides those of the federation."""

    title = "Rounds, aggregation, evaluation and output"

    rounds: int = key(
        30,
        "number of rounds; 0, with `init`, only evaluates a finished run",
        ge=0,
        also="num-rounds num-server-rounds global-rounds comm-rounds n-rounds",
    )
    participation: float = key(
        0.5,
        "participation rate: share of the trainable clients in each round",
        gt=0,
        le=1,
        also="fraction-train fraction-fit join-ratio client-fraction frac fraction",
    )
    cohort_size: int = key(
        0,
        "number of clients in each round; 0: by `participation`",
        ge=0,
        also="clients-per-round min-fit-clients min-train-nodes num-join-clients",
    )
    final_participation: float = key(
        0.0,
        "participation rate in the last round (of every stage, where a method has stages); 0: as in other rounds",
        ge=0, le=1,
    )  # fmt: skip
    mode: Literal["synchronous", "buffered"] = key(
        "synchronous",
        "a round: an exchange with a new cohort, or a server step after every `buffer.size` updates "
        "([more](fleets.md#buffered-rounds))",
    )
    oversample: float = key(
        1.0,
        "real devices, and simulations with table `fleet`: ask this many times as many clients as needed, and take the "
        "first usable replies",
        ge=1,
    )
    min_examples: int = key(
        0, "clients with fewer training examples are skipped; the log and `summary.json` say so", ge=0
    )
    aggregation: str = key(
        "mean",
        "how updates are combined; all but `mean` need individual updates ([what each does](robust.md))",
        values=", ".join((*(f"`{name}`" for name in RULES.own), "`package.module:Class`")),
    )
    attackers: Annotated[int | float | str, AfterValidator(_check_attackers)] = key(
        0,
        "who carries out `attack`: a number of clients, chosen by the seed, a share of those that may train, or names; "
        "`aggregation` tolerates as many in a cohort",
        values='number ≥ 0, share below 1, or names such as `"3,7"`',
        where="aggregation!=mean or attack!=none",
    )
    attack_knows: Literal["usual", "own", "attackers", "updates", "defence"] = key(
        "usual",
        "what attackers know: what they know in the attack's paper, their own training, each other's, all updates of "
        "the exchange, or also the rule",
        where="attack!=none",
    )
    tolerated: int = key(
        -1, "f, number of arbitrary updates in a cohort that `aggregation` tolerates; -1: as `attackers` says", ge=-1,
        where="aggregation!=mean",
    )  # fmt: skip
    buffers: Literal["mean", "first", "recompute"] = key(
        "mean",
        "the global model's buffers of numbers: the cohort's mean, its first client's, or recomputed by a further pass "
        "([more](models.md#buffers))",
    )
    server_optimizer: Literal["sgd", "fedadagrad", "fedadam", "fedyogi", "adam"] = key(
        "sgd",
        "server optimizer: SGD on the mean update, or an adaptive one ([formulas](methods/fedavg.md)); `adam`, with "
        "ε = 1e-8, is for hypernetworks",
    )
    server_learning_rate: float = key(
        1.0,
        "learning rate of the server optimizer; adaptive ones need less, such as 0.1 or 0.01",
        gt=0,
        also="server-lr global-lr",
    )
    server_momentum: float = key(
        0.0, "momentum of the server optimizer `sgd`", ge=0, lt=1, where="server-optimizer=sgd"
    )
    server_adaptivity: float = key(
        1e-3,
        "adaptivity τ of the server optimizers `fedadagrad`, `fedadam`, `fedyogi`",
        gt=0,
        where="server-optimizer=fedadagrad|fedadam|fedyogi",
    )
    server_betas: str = key(
        "",
        'β₁,β₂ of `fedadam` and `fedyogi`, β₁ of `fedadagrad` ([formulas](methods/fedavg.md)); "": 0.9,0.99 and 0',
        values='numbers from 0 to below 1, such as `"0.9,0.999"`; ""',
    )
    server_bias_correction: bool = key(
        False, "adaptive server optimizers: divide the moments by 1 − β₁ᵗ and 1 − β₂ᵗ, since they start from 0"
    )
    secure_colluding: float = key(
        0.1,
        "with secure aggregation: share of a cohort that may tell the server all they know",
        ge=0,
        lt=1,
        where="secure-aggregation=true",
    )
    secure_vanishing: float = key(
        0.2,
        "with secure aggregation: share of a cohort that may vanish in an exchange; if more do, it fails",
        ge=0,
        lt=1,
        where="secure-aggregation=true",
    )
    secure_failure: float = key(
        1e-9,
        "with secure aggregation: largest probability that an exchange fails, or reveals more than its sum, within "
        "these shares ([how it is used](secure-aggregation.md#parameters))",
        gt=0, lt=1, where="secure-aggregation=true",
    )  # fmt: skip
    secure_deviating: bool = key(
        False,
        "with secure aggregation: so many neighbours that not both secrets of a party come out, even if the server "
        "tells devices different things ([more](secure-aggregation.md#a-server-that-does-not-follow-the-protocol))",
        where="secure-aggregation=true",
    )
    secure_groups: int = key(
        1,
        "with secure aggregation: k, number of random groups of a cohort, each with a sum of its own, whose means "
        "`aggregation` combines ([more](robust.md#with-secure-aggregation))",
        ge=1,
        where="secure-aggregation=true",
    )
    secure_group_size: int = key(
        5, "with secure aggregation: the fewest clients of a group", ge=3, where="secure-aggregation=true"
    )
    min_success: float = key(
        0.5, "share of a cohort that must succeed for the run to continue; one client must in any case", ge=0, le=1
    )
    max_weight_ratio: float = key(
        10.0,
        "real devices: with `weighting = examples` a device counts for at most this many times the median number of "
        "training examples; 0: no limit",
        ge=0,
        where="weighting=examples",
    )
    round_timeout: float = key(3600.0, "seconds that one exchange may take, by the virtual clock too", gt=0)
    roster_timeout: float = key(
        60.0, "seconds within which a node must reply which clients it holds, or to a step of secure aggregation", gt=0
    )
    start_timeout: float = key(
        300.0, "seconds to wait for the first nodes, and for the start of a simulation's SuperLink and run", gt=0
    )
    metrics_port: int = key(
        0, "port on 127.0.0.1 where Prometheus can read the server's counters; 0: only `metrics.prom`", ge=0, le=65535
    )
    tracker: str = key(
        "",
        'where figures are sent while the run goes on ([how](trackers.md)); "": nowhere',
        values="`tensorboard`, `mlflow`, `wandb`, or [your own](extending.md#trackers)",
    )
    tracker_project: str = key(
        "florilegium",
        "the name under which a tracker groups runs",
        pattern=r"\S",
        values="text, not empty",
        where="tracker!=",
    )
    evaluate_every: int = key(
        5, "rounds between evaluations with checkpoints; one more follows the last round; 0: only that one", ge=0
    )
    checkpoint_every: int = key(0, "rounds between additional checkpoints; 0: only with evaluations", ge=0)
    checkpoint_seconds: float = key(
        60.0, "seconds between checkpoints, where they cost less than a tenth of the time; 0: none by time", ge=0
    )
    evaluate_clients: int = key(
        0, "evaluate a fixed sample of this many clients per group; 0: all clients; real devices: always all", ge=0
    )
    patience: int = key(
        0,
        "stop after this many evaluations in a row without a new best median of the clients' validation losses, or of "
        "the main figure of `metrics`; 0: never",
        ge=0,
    )
    keep: Literal["last", "best"] = key(
        "last",
        "the models that are left at the end: of the last round, or of the evaluation that is best by what `patience` "
        "follows",
    )
    run_name: str = key(
        "", 'name of the run\'s folder; "": time, method and dataset', pattern=OPTIONAL_NAME, values="name"
    )
    resume: str = key("", "run to continue from its last checkpoint", pattern=OPTIONAL_NAME, values="run id")
    init: str = key(
        "",
        "start from the final model of a run, or from a file of parameters "
        "([details](configuration.md#initial-parameters))",
        values="run id, or `.safetensors`, `.pt`, `.pth`",
    )
    fleet: FleetSettings = FleetSettings()
    buffer: BufferSettings = BufferSettings()
    robust: RobustSettings = RobustSettings()
    rule: SerializeAsAny[Section] = NoHyper()

    @field_validator("server_betas")
    @classmethod
    def _are_those_of_the_optimizer(cls, text: str, info: ValidationInfo) -> str:
        optimizer = info.data.get("server_optimizer")
        if not text or optimizer is None:
            return text
        if (usual := BETAS.get(optimizer)) is None:
            raise ValueError(f"server-optimizer '{optimizer}' has none; leave it out")
        numbers = parse_numbers(text)
        if len(numbers) != len(usual) or not all(0 <= number < 1 for number in numbers):
            wanted = ",".join(map(str, usual))
            raise ValueError(f"'{text}': '{optimizer}' needs {len(usual)} of 0 to below 1, such as '{wanted}'")
        return text

    @field_validator("server_bias_correction")
    @classmethod
    def _has_moments_to_correct(cls, corrected: bool, info: ValidationInfo) -> bool:
        optimizer = info.data.get("server_optimizer")
        if corrected and optimizer is not None and optimizer not in BETAS:
            raise ValueError(f"server-optimizer '{optimizer}' is not corrected; there are {', '.join(BETAS)}")
        return corrected

    @field_validator("patience")
    @classmethod
    def _has_something_to_wait_for(cls, patience: int, info: ValidationInfo) -> int:
        if patience and not (info.data.get("validation_fraction") and info.data.get("evaluate_every")):
            raise ValueError("stopping early needs a validation loss: set validation-fraction and evaluate-every")
        if patience and info.data.get("final_participation"):
            raise ValueError("the last round is not known in advance then: set final-participation to 0")
        return patience

    @field_validator("keep")
    @classmethod
    def _has_something_to_choose_by(cls, keep: str, info: ValidationInfo) -> str:
        if keep == "best" and not (info.data.get("validation_fraction") and info.data.get("evaluate_every")):
            raise ValueError("'best' is chosen on held-out examples: set validation-fraction and evaluate-every")
        return keep

    def tolerates(self, cohort: int) -> int:
        """Return f, the number of arbitrary updates among ``cohort`` that ``aggregation`` tolerates."""
        if self.tolerated >= 0:
            return self.tolerated
        if isinstance(self.attackers, float):
            return math.ceil(round(self.attackers * cohort, 9))
        return len(self.attackers.split(",")) if isinstance(self.attackers, str) else self.attackers

    @property
    def sums_of_groups(self) -> bool:
        """Whether updates reach the server as secure sums of random groups."""
        return self.secure_aggregation and self.secure_groups > 1

    @property
    def betas(self) -> tuple[float, float]:
        """β₁ and β₂ of an adaptive server optimizer; β₂ = 0 where there is none."""
        numbers = parse_numbers(self.server_betas) or BETAS[self.server_optimizer]
        return numbers[0], numbers[1] if len(numbers) > 1 else 0.0

    def need_held_out(self, name: str) -> None:
        """Refuse key ``name`` at "held-out" if clients hold out no examples, or are measured by those they learn from.

        Raises:
            ConfigurationError: ``validation-fraction`` is 0, or ``evaluate-on`` is "validation".
        """
        if not self.validation_fraction:
            raise ConfigurationError(f"{name}: 'held-out' needs held-out examples; set validation-fraction")
        if self.evaluate_on == "validation":
            raise ConfigurationError(
                f"{name}: with 'held-out' clients learn from the examples that evaluate-on = 'validation' would "
                "measure them by, and that tuning does; set 'training' there"
            )


TABLES: Mapping[str, type[Section]] = {
    name: type(field.default)
    for name, field in ServerSettings.model_fields.items()
    if isinstance(field.default, Section) and type(field.default).model_fields
}
"""The tables of keys that all methods share, by name."""
