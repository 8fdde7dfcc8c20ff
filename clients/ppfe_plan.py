"""PPFE's plan: the stage that a round belongs to, its personal blocks, and the form of its network.

Server and clients derive it from the configuration alone, so that they agree without exchanging it.
"""

from __future__ import annotations

import math
from itertools import accumulate

from torch import nn

from florilegium.clients.hyper.ppfe import PPFEHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.settings import parse_counts
from florilegium.models.blocks import block_names, block_of, last_blocks
from florilegium.models.built import build_network
from florilegium.models.parameters import Arrays, whole
from florilegium.models.reduction import dense_layers, factorise, mask, narrow
from florilegium.models.settings import NetworkSettings


class Plan:
    """The stages of a run.

    Args:
        hyper: keys ``ppfe.*``.
        network: the network of the run; only its structure is used.
        seed: the run's seed.

    Raises:
        ConfigurationError: if the stages do not fit the network.
    """

    def __init__(self, hyper: PPFEHyper, network: nn.Sequential, seed: int) -> None:
        self.hyper = hyper
        self._seed = seed
        self._names = list(whole(network))
        # Dense layers, first to last, and how many outputs (N_l, the paper's W_b) each has.
        self._dense = {path: network.get_parameter(f"{path}.weight").shape[0] for path in dense_layers(network)}
        self._personal = [
            last_blocks(self._names, count, "ppfe.personal-blocks") for count in parse_counts(hyper.personal_blocks)
        ]
        self._last = list(accumulate(parse_counts(hyper.stage_rounds)))
        self._ranks = [parse_counts(part) for part in hyper.ranks.split(";") if part.strip()]
        if hyper.reduction == "low-rank" and any(len(ranks) != len(self._dense) for ranks in self._ranks):
            raise ConfigurationError(
                f"ppfe.ranks: '{hyper.ranks}' must give a rank for each of the {len(self._dense)} dense layers "
                f"({', '.join(self._dense)}) in every stage from 3 on"
            )

    @property
    def stages(self) -> int:
        """Number of stages T."""
        return len(self._last)

    @property
    def rounds(self) -> int:
        """Number of rounds of all stages together."""
        return self._last[-1]

    def stage(self, server_round: int) -> int:
        """Return the stage t = 1..T that a round belongs to; round 0 belongs to the first."""
        return next((t for t, last in enumerate(self._last, start=1) if server_round <= last), self.stages)

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
        """Return the blocks whose dense layers are reduced in a stage (if that saves parameters, where required)."""
        match self.hyper.reduction:
            case "low-rank":
                return frozenset(map(block_of, self._dense)) if stage >= 3 else frozenset()
            case "none":
                return frozenset()
            case _:
                return self.personal(stage)

    def convert(self, arrays: Arrays, stage: int) -> Arrays:
        """Return ``arrays``, a part of an earlier stage's network, in the reduced form that it has in ``stage``.

        The part must contain all personal blocks of the stage, or none.
        """
        match self.hyper.reduction:
            case "low-rank" if stage >= 3:
                ranks = dict(zip(self._dense, self._ranks[stage - 3], strict=True))
                return factorise(arrays, ranks, always=self.hyper.factorise == "always")
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


@remembered(4)
def plan(
    hyper: PPFEHyper, network: NetworkSettings, shape: tuple[int, ...], classes: int, seed: int, *, codes: int = 0
) -> Plan:
    """Return the plan of a run, from its configuration; ``codes``: number of different codes in inputs."""
    return Plan(hyper, build_network(network, shape, classes, seed, codes=codes), seed)
