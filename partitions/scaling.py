"""A client's own scaling of a table: its training rows' medians, means and deviations instead of the federation's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """What is done to the d features of a row: a missing value is filled in, then (x − mean) / std.

    Attributes:
        fill: what stands for NaN, (d,).
        mean, std: (d,); 0 and 1 for features that are no numbers, std 1 for those that are constant.
    """

    fill: Tensor
    mean: Tensor
    std: Tensor

    @staticmethod
    def of(x: Tensor, places: Sequence[int]) -> Scaling:
        """Return the scaling of the features ``places`` by training rows x (n, d).

        A feature that no row has keeps the federation's centre, 0.
        """
        fill, mean, std = torch.zeros(x.shape[1]), torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        for place in places if len(x) else ():
            column = x[:, place].double()
            known = column[~column.isnan()]
            fill[place] = known.quantile(0.5) if len(known) else 0.0
            column = column.nan_to_num(float(fill[place]))
            mean[place] = column.mean()
            spread = float(column.std(correction=0))
            std[place] = spread if spread > 1e-6 else 1.0  # below that, it is the rounding of equal numbers
        return Scaling(fill, mean, std)

    def apply(self, x: Tensor) -> Tensor:
        """Return scaled features, (n, d), on the device of x."""
        fill, mean, std = (part.to(x.device) for part in (self.fill, self.mean, self.std))
        return (torch.where(x.isnan(), fill, x) - mean) / std
