"""The configuration keys that the server's work depends on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from common.settings import NAME, RateSettings, check_folder
from partitions.settings import FederationSettings
from privacy.settings import PrivacySettings

OPTIONAL_NAME = rf"^({NAME})?$"


class ServerSettings(FederationSettings, RateSettings):
    """Rounds, cohorts, aggregation, evaluation and output, besides the federation."""

    method: str
    model: str
    rounds: int = Field(ge=0)
    participation: float = Field(gt=0, le=1)
    cohort_size: int = Field(ge=0)
    final_participation: float = Field(ge=0, le=1)
    oversample: float = Field(ge=1)
    min_examples: int = Field(ge=0)
    optimizer: Literal["sgd", "adam"]
    max_grad_norm: float = Field(ge=0)
    momentum: float = Field(ge=0, lt=1)
    weighting: Literal["examples", "uniform"]
    privacy: PrivacySettings
    aggregation: Literal["mean", "median", "trimmed-mean", "krum"]
    attackers: int = Field(ge=0)
    max_update_norm: float = Field(ge=0)
    server_optimizer: Literal["sgd", "adam"]
    server_learning_rate: float = Field(gt=0)
    server_momentum: float = Field(ge=0, lt=1)
    server_adaptivity: float = Field(gt=0)
    min_success: float = Field(ge=0, le=1)
    round_timeout: float = Field(gt=0)
    roster_timeout: float = Field(gt=0)
    start_timeout: float = Field(gt=0)
    evaluate_every: int = Field(ge=0)
    checkpoint_every: int = Field(ge=0)
    evaluate_clients: int = Field(ge=0)
    finetune_epochs: int = Field(ge=0)
    finetune_bn: Literal["running", "client", "global", "batch"]
    validation_fraction: float = Field(ge=0, lt=1)
    patience: int = Field(ge=0)
    runs_dir: Annotated[str, AfterValidator(check_folder), Field(min_length=1)]
    run_name: str = Field(pattern=OPTIONAL_NAME)
    metrics_port: int = Field(ge=0, le=65535)
    resume: str = Field(pattern=OPTIONAL_NAME)
    init: str

    @field_validator("patience")
    @classmethod
    def _has_something_to_wait_for(cls, patience: int, info: ValidationInfo) -> int:
        if patience and not (info.data.get("validation_fraction") and info.data.get("evaluate_every")):
            raise ValueError("stopping early needs a validation loss: set validation-fraction and evaluate-every")
        if patience and info.data.get("final_participation"):
            raise ValueError("nobody knows which round is the last then: set final-participation to 0")
        return patience
