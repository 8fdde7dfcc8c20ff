"""kNN-Per, server side (Marfoq et al. 2022): FedAvg, whose model clients mix with their nearest neighbours."""

from __future__ import annotations

from florilegium.clients.hyper.personal import KNNPerHyper
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class KNNPer(FedAvg):
    """FedAvg; clients may need held-out examples, which then cannot measure them."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: KNNPerHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.hyper.choose_on == "held-out":
            self.settings.need_held_out("knn-per.choose-on")
