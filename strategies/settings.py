"""The configuration keys that the server's work depends on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from common.settings import NAME, Section, check_folder

OPTIONAL_NAME = rf"^({NAME})?$"


class ServerSettings(Section):
    """Rounds, cohorts, aggregation, evaluation and output."""

    method: str
    dataset: str
    model: str
    seed: int = Field(ge=0)
    num_clients: int = Field(ge=0)
    unseen_fraction: float = Field(ge=0, lt=1)
    labeled_fraction: float = Field(gt=0, le=1)
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
