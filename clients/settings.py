"""The configuration keys that a client's work depends on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.settings import RateSettings, check_folder
from privacy.settings import PrivacySettings


class ClientSettings(RateSettings):
    """What every client needs to train and evaluate, whatever the method."""

    method: str
    dataset: str
    model: str
    seed: int = Field(ge=0)
    local_epochs: int = Field(ge=1)
    local_steps: int = Field(ge=0)
    batch_size: int = Field(ge=1)
    optimizer: Literal["sgd", "adam"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(ge=0)
    finetune_epochs: int = Field(ge=0)
    finetune_bn: Literal["running", "client", "global", "batch"]
    validation_fraction: float = Field(ge=0, lt=1)
    weighting: Literal["examples", "uniform"]
    max_update_norm: float = Field(ge=0)
    privacy: PrivacySettings
    device: str = Field(pattern=r"^(cpu|cuda(:\d+)?|auto)$")
    runs_dir: Annotated[str, AfterValidator(check_folder), Field(min_length=1)]
    state_dir: Annotated[str, AfterValidator(check_folder)]
