"""The registry of methods: a strategy and a client of the same file name each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clients.hyper import (
    DittoHyper,
    FedBABUHyper,
    FedGTSTHyper,
    FedIIRHyper,
    FedL2PHyper,
    FedProxHyper,
    FedRepHyper,
    FedSRHyper,
    FedTTAHyper,
    FLowDUPHyper,
    HeadHyper,
    KMeansHyper,
    KNNPerHyper,
    MDMHyper,
    PeFLLHyper,
    PerFedAvgHyper,
    PFedFDAHyper,
    PFedHNHyper,
    PFedMeHyper,
    PPFEHyper,
    PPFELinearHyper,
    ScaffoldHyper,
    SubspaceHyper,
)
from common.settings import NoHyper, Section

if TYPE_CHECKING:
    from clients.base import BaseClient
    from strategies.cohort import CohortStrategy


@dataclass(frozen=True)
class Method:
    """Where a method's two halves are, and what to tell people about it.

    The halves are imported when used: a client process never imports strategies, the command line neither.

    Attributes:
        module: file name of both halves.
        name: class name of the strategy; its client's is ``<name>Client``.
        hyper: the method's own keys.
        title, source: what it is, and whose.
        task: what it does with a dataset: predict classes or numbers, cluster inputs, or count values.
        table: the table of its own keys where several methods share one; "": that of its name.
    """

    module: str
    name: str
    hyper: type[Section]
    title: str
    source: str
    task: Literal["classification", "regression", "clustering", "histograms"] = "classification"
    table: str = ""

    def strategy(self) -> type[CohortStrategy]:
        """Import and return the server side."""
        found: type[CohortStrategy] = getattr(importlib.import_module(f"strategies.{self.module}"), self.name)
        return found

    def client(self) -> type[BaseClient]:
        """Import and return the client side."""
        found: type[BaseClient] = getattr(importlib.import_module(f"clients.{self.module}"), f"{self.name}Client")
        return found


def _clustering(module: str, name: str, title: str, source: str) -> Method:
    return Method(module, name, KMeansHyper, title, source, task="clustering", table="kmeans")


def table_of(method: str) -> str:
    """Return the table of a method's own keys in the configuration."""
    return METHODS[method].table or method


METHODS: Mapping[str, Method] = {
    "fedavg": Method("fedavg", "FedAvg", NoHyper, "Federated averaging", "McMahan et al. 2017"),
    "fedprox": Method("fedprox", "FedProx", FedProxHyper, "Proximal local objectives", "Li et al. 2020"),
    "scaffold": Method(
        "scaffold", "Scaffold", ScaffoldHyper, "Steps corrected by control variates", "Karimireddy et al. 2020"
    ),
    "fedgtst": Method("fedgtst", "FedGTST", FedGTSTHyper, "Features that transfer, by gradient norms", "FedGTST"),
    "fedsr": Method("fedsr", "FedSR", FedSRHyper, "Simple representations", "Nguyen et al. 2022"),
    "fediir": Method("fediir", "FedIIR", FedIIRHyper, "Aligned gradients of classifiers", "Guo et al. 2023"),
    "fedper": Method("fedper", "FedPer", HeadHyper, "Shared body, personal head", "Arivazhagan et al. 2019"),
    "fedrep": Method("fedrep", "FedRep", FedRepHyper, "Shared body, head fitted first", "Collins et al. 2021"),
    "fedbabu": Method("fedbabu", "FedBABU", FedBABUHyper, "Shared body under a fixed head", "Oh et al. 2022"),
    "fedbn": Method("fedbn", "FedBN", NoHyper, "Shared network, personal batch norm", "Li et al. 2021"),
    "fedl2p": Method("fedl2p", "FedL2P", FedL2PHyper, "Learning how to fine-tune", "Lee et al. 2023"),
    "l2p": Method("l2p", "L2P", FedL2PHyper, "The same, each client alone", "Lee et al. 2023", table="fedl2p"),
    "lg-fedavg": Method("lg_fedavg", "LGFedAvg", HeadHyper, "Personal body, shared head", "Liang et al. 2020"),
    "ditto": Method("ditto", "Ditto", DittoHyper, "Personal models tied to the global one", "Li et al. 2021"),
    "pfedfda": Method("pfedfda", "PFedFDA", PFedFDAHyper, "Adapted generative classifiers", "McLaughlin, Su 2024"),
    "ppfe": Method("ppfe", "PPFE", PPFEHyper, "Progressive personalised ensembles", "Emrani et al."),
    "ppfe-linear": Method(
        "ppfe_linear",
        "PPFELinear",
        PPFELinearHyper,
        "PPFE for linear regression",
        "Emrani et al., section 6.1",
        task="regression",
    ),
    "per-fedavg": Method(
        "per_fedavg", "PerFedAvg", PerFedAvgHyper, "A model that adapts in a step", "Fallah et al. 2020"
    ),
    "pfedme": Method("pfedme", "PFedMe", PFedMeHyper, "Personal models by Moreau envelopes", "Dinh et al. 2020"),
    "knn-per": Method(
        "knn_per", "KNNPer", KNNPerHyper, "Nearest neighbours beside a global model", "Marfoq et al. 2022"
    ),
    "pefll": Method("pefll", "PeFLL", PeFLLHyper, "Models made of clients' descriptors", "Scott, thesis, chapter 4"),
    "pfedhn": Method("pfedhn", "PFedHN", PFedHNHyper, "Models made of learned descriptors", "Shamsian et al. 2021"),
    "feddp-kmeans": _clustering("feddp_kmeans", "FedDPKMeans", "Private clustering", "Scott, thesis, chapter 6"),
    "server-kmeans++": _clustering("server_kmeans_pp", "ServerKMeansPP", "k-means++ of the server's data", "reference"),
    "server-lloyds": _clustering("server_lloyds", "ServerLloyds", "k-means of the server's data", "reference"),
    "sphere-packing": _clustering("sphere_packing", "SpherePacking", "Centres without data", "Su et al. 2017"),
    "k-fed": _clustering("k_fed", "KFed", "One-shot clustering of centres", "Dennis et al. 2021"),
    "optimal": _clustering("optimal", "Optimal", "k-means of all data in one place", "reference"),
    "flowdup": Method("flowdup", "FLowDUP", FLowDUPHyper, "Models of unlabeled data, in a subspace", "FLowDUP"),
    "ld-fedavg": Method("ld_fedavg", "LDFedAvg", SubspaceHyper, "FedAvg in a random subspace", "FLowDUP, section 5.1"),
    "fedtta": Method("fedtta", "FedTTA", FedTTAHyper, "A model that adapts to unlabeled inputs", "Ye et al. 2024"),
    "mdm": Method(
        "mdm", "MDM", MDMHyper, "How clients differ: a mixture model", "Scott, thesis, chapter 3", task="histograms"
    ),
    "local": Method("local", "Local", NoHyper, "Each client alone", "reference"),
}
