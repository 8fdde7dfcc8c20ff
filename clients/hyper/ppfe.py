"""Keys of PPFE, and of PPFE for linear regression."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Section, key, parse_counts, parse_numbers

Stage = Literal["averaged", "personal", "local"]


def parse_stages(text: str) -> list[Stage]:
    """Parse the stages of ``ppfe-linear.stages``."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not set(words) <= {"averaged", "personal", "local"}:
        raise ValueError(f"'{text}' is not a comma-separated list of the words averaged, personal, local")
    return words  # type: ignore[return-value]


def _check_stages(text: str) -> str:
    parse_stages(text)
    return text


def _check_penalties(text: str) -> str:
    if not (numbers := parse_numbers(text)) or min(numbers) <= 0:
        raise ValueError(f"'{text}' is not a comma-separated list of numbers > 0")
    return text


class PPFELinearHyper(Section):
    """Keys ``ppfe-linear.*``."""

    stages: Annotated[str, AfterValidator(_check_stages)] = key(
        "averaged,personal,personal,personal",
        "what each stage fits: `averaged`, the mean of clients' solutions; `personal`, a shared and a personal part; "
        "`local`, each client alone",
    )
    penalties: Annotated[str, AfterValidator(_check_penalties)] = key(
        "0.001,0.003,0.01,0.03,0.1,0.3,1,3,10", "the grid of ridge penalties λ"
    )
    exchanges: int = key(5, "number of times that solutions are averaged in a `personal` stage", ge=1)

    def check_with(self, settings: Any) -> None:
        """Raise :class:`ConfigurationError` unless there is a round for each stage, and the model is linear."""
        stages = len(parse_stages(self.stages))
        if stages != settings.rounds or settings.model != "linear":
            raise ConfigurationError(
                f"rounds, model: ppfe-linear works on model = 'linear' with a round for each of its {stages} stages "
                f"(found: {settings.rounds} rounds, '{settings.model}')"
            )


def _check_counts(text: str) -> str:
    parse_counts(text)
    return text


Counts = Annotated[str, AfterValidator(_check_counts)]


class PPFEHyper(Section):
    """Keys ``ppfe.*``."""

    personal_blocks: Counts = key("0,1,2,3", "number of last blocks that are personal, for each stage 1..T")
    stage_rounds: Counts = key("30,50,40,40", "number of rounds of each stage; the sum must be `rounds`")
    reduction: Literal["low-rank", "sparse", "width", "none"] = key(
        "low-rank",
        "reduction of dense layers: factors of given ranks from stage 3 on; masks, or fewer hidden units, from stage 2 "
        "on; or none",
    )
    ranks: str = key(
        "100,50,24; 80,40,16", "ranks of the dense layers, first to last, for each stage from 3 on: '9,9;5,5'"
    )
    factorise: Literal["saving", "always"] = key(
        "saving", "which dense layers are factorised: only those that get smaller by it, or all"
    )
    sparsity: float = key(0.3, "share of masked weights in the layers that become personal first", ge=0, lt=1)
    later_sparsity: float = key(0.1, "share of masked weights in layers that become personal later", ge=0, lt=1)
    width_exponent: float = key(0.25, "α: the number of hidden units between personal layers shrinks as t^−α", ge=0)
    warm_start: Literal["previous", "first"] = key(
        "previous", "initial values of reduced layers in a stage: from the previous stage, or stage 1's global model"
    )
    shared_learning_rate: float = key(0.001, "learning rate of shared blocks from stage `later-stage` on", gt=0)
    later_stage: int = key(2, "first stage that uses `shared-learning-rate`", ge=1)
    reweighting: bool = key(True, "give examples that the ensemble gets wrong more weight in the next stage")
    reweight_by: Literal["ensemble", "stage"] = key(
        "ensemble", "losses that determine the next stage's weights: of the ensemble so far, or of the stage's model"
    )
    loss: Literal["zero-one", "cross-entropy"] = key("zero-one", "loss ℓ that is used for reweighting")
    max_loss: float = key(1.0, "ℓ_max, to which the cross-entropy is clipped; must be 1 for the 0–1 loss", gt=0)
    min_error: float = key(0.01, "the weighted error ε is clipped to [min-error, 1 − min-error]", gt=0, lt=0.5)
    coefficients: Literal["training", "held-out"] = key(
        "training",
        "examples from which β is computed: the training examples, by their weights ω; or those that "
        "`validation-fraction` holds out",
    )
    combination: Literal["probabilities", "logits", "last"] = key(
        "probabilities", "what the ensemble averages; `last`: only the last stage's model predicts"
    )

    @field_validator("personal_blocks")
    @classmethod
    def _never_falls(cls, text: str) -> str:
        if sorted(parse_counts(text)) != parse_counts(text):
            raise ValueError(f"'{text}': what is personal stays so; a number may not be less than the one before")
        return text

    @field_validator("stage_rounds")
    @classmethod
    def _fits_stages(cls, text: str, info: ValidationInfo) -> str:
        stages = len(parse_counts(info.data.get("personal_blocks", text)))
        found = parse_counts(text)
        if len(found) != stages or min(found) < 1:
            raise ValueError(f"{len(found)} numbers for {stages} stages (ppfe.personal-blocks); give one ≥ 1 for each")
        return text

    @field_validator("ranks")
    @classmethod
    def _ranks_fit_stages(cls, text: str, info: ValidationInfo) -> str:
        needed = max(0, len(parse_counts(info.data.get("personal_blocks", "0"))) - 2)
        lists = [parse_counts(part) for part in text.split(";") if part.strip()]
        if info.data.get("reduction") == "low-rank" and len(lists) != needed:
            raise ValueError(f"{len(lists)} lists of ranks, but {needed} stages from stage 3 on; separate lists by ';'")
        if any(rank < 1 for ranks in lists for rank in ranks):
            raise ValueError("a rank is at least 1")
        return text

    @field_validator("max_loss")
    @classmethod
    def _zero_one_is_at_most_one(cls, value: float, info: ValidationInfo) -> float:
        if info.data.get("loss") == "zero-one" and value != 1:
            raise ValueError("the 0–1 loss is at most 1")
        return value
