"""PPFE's plan: which stage a round belongs to, what is personal in it, and the form its network has.

Server and clients derive it from the configuration alone, so that they agree without a word.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from torch import nn

from common.errors import ConfigurationError
from common.settings import Section, parse_numbers
from models.blocks import block_names, block_of, last_blocks
from models.networks import build
from models.parameters import Arrays, exchanged
from models.reduction import dense_layers, factorise, mask, narrow
from partitions.datasets import find_spec


def _counts(text: str) -> list[int]:
    numbers = parse_numbers(text)
    if not numbers or any(number < 0 or number != int(number) for number in numbers):
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers, such as '30,50,40,40'")
    return [int(number) for number in numbers]


def _check_counts(text: str) -> str:
    _counts(text)
    return text


Counts = Annotated[str, AfterValidator(_check_counts)]


class Hyper(Section):
    """Keys ``ppfe.*``."""

    personal_blocks: Counts = Field(description="personal blocks at the end of the network, for each stage 1..T")
    stage_rounds: Counts = Field(description="rounds of each stage; their sum is `rounds`")
    reduction: Literal["low-rank", "sparse", "width", "none"] = Field(
        description="how dense layers are made smaller: factors of given ranks from stage 3 on; masks or fewer hidden "
        "units of personal layers from stage 2 on; or not at all"
    )
    ranks: str = Field(description="ranks of the dense layers, first to last, for each stage from 3 on: '9,9;5,5'")
    sparsity: float = Field(ge=0, lt=1, description="share of masked weights of the first personal layers")
    later_sparsity: float = Field(ge=0, lt=1, description="the same for layers that become personal later")
    width_exponent: float = Field(ge=0, description="α: hidden units between personal layers shrink as t^−α")
    warm_start: Literal["previous", "first"] = Field(
        description="where a stage with reduced layers takes these from: the stage before, or stage 1's global model"
    )
    shared_learning_rate: float = Field(gt=0, description="learning rate of shared blocks from stage 2 on")
    reweighting: bool = Field(description="give examples that the ensemble gets wrong more weight in the next stage")
    loss: Literal["zero-one", "cross-entropy"] = Field(description="ℓ in the reweighting")
    max_loss: float = Field(gt=0, description="ℓ_max: where cross-entropy is clipped; 1 for the 0–1 loss")
    min_error: float = Field(gt=0, lt=0.5, description="ε is kept between this and one minus this")
    combination: Literal["probabilities", "logits", "last"] = Field(
        description="what the ensemble averages; or the last stage's model alone"
    )

    @field_validator("stage_rounds")
    @classmethod
    def _fits_stages(cls, text: str, info: ValidationInfo) -> str:
        stages = len(_counts(info.data.get("personal_blocks", text)))
        found = _counts(text)
        if len(found) != stages or min(found) < 1:
            raise ValueError(f"{len(found)} numbers for {stages} stages (ppfe.personal-blocks); give one ≥ 1 for each")
        return text

    @field_validator("ranks")
    @classmethod
    def _ranks_fit_stages(cls, text: str, info: ValidationInfo) -> str:
        needed = max(0, len(_counts(info.data.get("personal_blocks", "0"))) - 2)
        lists = [_counts(part) for part in text.split(";") if part.strip()]
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


class Plan:
    """The stages of a run.

    Args:
        hyper: keys ``ppfe.*``.
        network: the network of the run; only its structure is used.
        seed: the run's seed.

    Raises:
        ConfigurationError: if the stages do not fit the network.
    """

    def __init__(self, hyper: Hyper, network: nn.Sequential, seed: int) -> None:
        self.hyper = hyper
        self._seed = seed
        self._names = list(exchanged(network))
        # Dense layers, first to last, and how many outputs (N_l, the paper's W_b) each has.
        self._dense = {path: network.get_parameter(f"{path}.weight").shape[0] for path in dense_layers(network)}
        self._personal = [
            last_blocks(self._names, count, "ppfe.personal-blocks") for count in _counts(hyper.personal_blocks)
        ]
        self._last = list(accumulate(_counts(hyper.stage_rounds)))
        self._ranks = [_counts(part) for part in hyper.ranks.split(";") if part.strip()]
        if hyper.reduction == "low-rank" and any(len(ranks) != len(self._dense) for ranks in self._ranks):
            raise ConfigurationError(
                f"ppfe.ranks: '{hyper.ranks}' must give a rank for each of the {len(self._dense)} dense layers "
                f"({', '.join(self._dense)}) in every stage from 3 on"
            )

    @property
    def stages(self) -> int:
        """T."""
        return len(self._last)

    @property
    def rounds(self) -> int:
        """All rounds of all stages."""
        return self._last[-1]

    def stage(self, server_round: int) -> int:
        """Return the stage t = 1..T that a round belongs to; round 0 belongs to the first."""
        return next((t for t, last in enumerate(self._last, start=1) if server_round <= last), self.stages)

    def is_first(self, server_round: int) -> bool:
        """Return whether a round is the first of its stage."""
        return server_round == 1 or server_round - 1 in self._last

    def is_last(self, server_round: int) -> bool:
        """Return whether a round is the last of its stage."""
        return server_round in self._last

    def personal(self, stage: int) -> frozenset[str]:
        """Return the names of the personal blocks of a stage."""
        return self._personal[stage - 1]

    def shared(self, stage: int) -> frozenset[str]:
        """Return the names of the shared blocks of a stage."""
        return frozenset(block_names(self._names)) - self.personal(stage)

    def reduced(self, stage: int) -> frozenset[str]:
        """Return the blocks whose dense layers are smaller than in the stage before."""
        match self.hyper.reduction:
            case "low-rank":
                return frozenset(map(block_of, self._dense)) if stage >= 3 else frozenset()
            case "none":
                return frozenset()
            case _:
                return self.personal(stage)

    def convert(self, arrays: Arrays, stage: int) -> Arrays:
        """Return ``arrays``, a part of an earlier stage's network, in the form that ``stage`` gives it.

        A part must hold all personal blocks of the stage, or none.
        """
        match self.hyper.reduction:
            case "low-rank" if stage >= 3:
                return factorise(arrays, dict(zip(self._dense, self._ranks[stage - 3], strict=True)))
            case "sparse":
                return self.mask(arrays, stage)
            case "width":
                return self._narrowed(arrays, stage)
            case _:
                return dict(arrays)

    def masks(self, arrays: Arrays, stage: int) -> Arrays:
        """Return the masks of the personal dense layers of a stage: 1 where a weight remains, 0 where it is masked."""
        if self.hyper.reduction != "sparse":
            return {}
        first = next((t for t in range(1, stage + 1) if self.personal(t)), stage)
        result: Arrays = {}
        for path in self._dense:
            name = f"{path}.weight"
            if name in arrays and block_of(path) in self.personal(stage):
                sparsity = self.hyper.sparsity if block_of(path) in self.personal(first) else self.hyper.later_sparsity
                result[name] = mask(path, arrays[name].shape, sparsity, self._seed)
        return result

    def mask(self, arrays: Arrays, stage: int) -> Arrays:
        """Return ``arrays`` with the masked weights of a stage at zero."""
        masks = self.masks(arrays, stage)
        return {name: array * masks[name].astype(array.dtype) if name in masks else array
                for name, array in arrays.items()}  # fmt: skip

    def _narrowed(self, arrays: Arrays, stage: int) -> Arrays:
        layers = [path for path in self._dense if block_of(path) in self.personal(stage) and f"{path}.weight" in arrays]
        shrink = float(stage) ** -self.hyper.width_exponent
        return narrow(arrays, layers, [math.ceil(self._dense[path] * shrink) for path in layers[:-1]])


@lru_cache(maxsize=4)
def plan(hyper: Hyper, model: str, dataset: str, seed: int) -> Plan:
    """Return the plan of a run."""
    spec = find_spec(dataset)
    return Plan(hyper, build(model, spec.shape, spec.classes, seed), seed)
