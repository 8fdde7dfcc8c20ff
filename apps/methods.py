"""The registry of methods: a strategy and a client of the same file name each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clients.base import BaseClient
from common.settings import Section

if TYPE_CHECKING:
    from strategies.cohort import CohortStrategy


@dataclass(frozen=True)
class Method:
    """Where a method's two halves are, and what to tell people about it.

    The halves are imported when used: a client process never imports strategies.
    """

    module: str
    strategy_class: str
    client_class: str
    title: str
    source: str

    def strategy(self) -> type[CohortStrategy]:
        """Import and return the server side."""
        found: type[CohortStrategy] = getattr(importlib.import_module(f"strategies.{self.module}"), self.strategy_class)
        return found

    def client(self) -> type[BaseClient]:
        """Import and return the client side."""
        found: type[BaseClient] = getattr(importlib.import_module(f"clients.{self.module}"), self.client_class)
        return found

    def hyper(self) -> type[Section]:
        """Return the model of the method's own hyper-parameters."""
        found: type[Section] = importlib.import_module(f"clients.{self.module}").Hyper
        return found


METHODS: Mapping[str, Method] = {
    "fedavg": Method("fedavg", "FedAvg", "FedAvgClient", "Federated averaging", "McMahan et al. 2017"),
    "fedprox": Method("fedprox", "FedProx", "FedProxClient", "Proximal local objectives", "Li et al. 2020"),
    "fedper": Method("fedper", "FedPer", "FedPerClient", "Shared body, personal head", "Arivazhagan et al. 2019"),
    "fedrep": Method("fedrep", "FedRep", "FedRepClient", "Shared body, head fitted first", "Collins et al. 2021"),
    "fedbabu": Method("fedbabu", "FedBABU", "FedBABUClient", "Shared body under a fixed head", "Oh et al. 2022"),
    "lg-fedavg": Method("lg_fedavg", "LGFedAvg", "LGFedAvgClient", "Personal body, shared head", "Liang et al. 2020"),
    "ditto": Method("ditto", "Ditto", "DittoClient", "Personal models tied to the global one", "Li et al. 2021"),
    "ppfe": Method("ppfe", "PPFE", "PPFEClient", "Progressive personalised ensembles", "Emrani et al."),
    "pfedfda": Method("pfedfda", "PFedFDA", "PFedFDAClient", "Generative classifiers, adapted", "McLaughlin, Su 2024"),
    "local": Method("local", "Local", "LocalClient", "Each client alone", "reference"),
}
