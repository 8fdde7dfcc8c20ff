"""The configuration keys that the server's work depends on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from common.settings import NAME, check_folder
from partitions.settings import FederationSettings

OPTIONAL_NAME = rf"^({NAME})?$"


class ServerSettings(FederationSettings):
    """Rounds, cohorts, aggregation, evaluation and output, besides the federation."""

    method: str
    model: str
    rounds: int = Field(ge=0)
    participation: float = Field(gt=0, le=1)
    cohort_size: int = Field(ge=0)
    final_participation: float = Field(ge=0, le=1)
    learning_rate: float = Field(gt=0)
    server_learning_rate: float = Field(gt=0)
    server_momentum: float = Field(ge=0, lt=1)
    min_success: float = Field(ge=0, le=1)
    round_timeout: float = Field(gt=0)
    start_timeout: float = Field(gt=0)
    evaluate_every: int = Field(ge=0)
    evaluate_clients: int = Field(ge=0)
    runs_dir: Annotated[str, AfterValidator(check_folder), Field(min_length=1)]
    run_name: str = Field(pattern=OPTIONAL_NAME)
    resume: str = Field(pattern=OPTIONAL_NAME)
    init: str
