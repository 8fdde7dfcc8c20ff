"""kNN-Per, server side (Marfoq et al. 2022): FedAvg, whose model clients mix with their nearest neighbours."""

from __future__ import annotations

from florilegium.clients.hyper.personal import KNNPerHyper
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.promises import (
    mean_of_updates,
    only_sums,
    sums_of_updates,
    trains_by_updates,
    whole_network,
)
from florilegium.strategies.fedavg import FedAvg


class KNNPer(FedAvg):
    """FedAvg; clients may need held-out examples, which then cannot measure them."""

    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: KNNPerHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.hyper.choose_on == "held-out":
            self.settings.need_held_out("knn-per.choose-on")
