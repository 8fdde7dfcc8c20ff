"""The suite's own methods, by name, in the order in which they are listed."""

from __future__ import annotations

from collections.abc import Mapping

from florilegium.apps.methods.declaration import Method
from florilegium.common.settings import Value

_STRATEGIES, _CLIENTS, _KEYS = "florilegium.strategies", "florilegium.clients", "florilegium.clients.hyper"
_FEDAVG = f"{_STRATEGIES}.fedavg:FedAvg"
_SHARED_BODY = f"{_STRATEGIES}.families.decoupled:SharedBody"
_HEAD_KEYS = f"{_KEYS}.personal:HeadHyper"

_LORA: Mapping[str, Value] = {"adapter.kind": "lora"}
_ADAPTED: Mapping[str, Value] = {"adapter.targets": "fc3"}
_HOSPITALS: Mapping[str, Value] = {"dataset": "fed-heart", "partitioner": "natural", "num-clients": 0}
_PRODUCTS = {**_LORA, "adapter.fixed": "", "adapter.dora": False, "server-learning-rate": 1.0}
"""Of methods whose result is the new model, from clients' updates s·B·A."""
_CORRECTED = {**_PRODUCTS, "adapter.correction": True}


def _ranked(
    title: str, source: str, strategy: str, implies: Mapping[str, Value],
    client: str = "families.ranked:RankedClient",
) -> Method:  # fmt: skip
    return Method(
        title,
        source,
        f"{_STRATEGIES}.{strategy}",
        f"{_CLIENTS}.{client}",
        f"{_KEYS}.capacity:RanksHyper",
        table="ranks",
        new_clients="the global model at their rank",
        implies=implies,
        first=_ADAPTED,
    )


def _clustering(title: str, source: str, strategy: str, client: str = "kmeans:KMeansClient") -> Method:
    return Method(
        title, source, f"{_STRATEGIES}.clustering.{strategy}", f"{_CLIENTS}.clustering.{client}",
        f"{_KEYS}.clustering:KMeansHyper", task="clustering", table="kmeans", descends=False,
        new_clients="the common centres",
        first={
            "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid", "samples-per-client": 60,
            "server-examples": 120, "rounds": 1,
        },
    )  # fmt: skip


OWN_METHODS: dict[str, Method] = {
    "fedavg": Method("Federated averaging", "McMahan et al. 2017", _FEDAVG, f"{_CLIENTS}.fedavg:FedAvgClient"),
    "fedprox": Method(
        "Proximal local objectives", "Li et al. 2020",
        f"{_STRATEGIES}.fedprox:FedProx", f"{_CLIENTS}.fedprox:FedProxClient", f"{_KEYS}.federated:FedProxHyper",
    ),
    "scaffold": Method(
        "Steps corrected by control variates", "Karimireddy et al. 2020",
        f"{_STRATEGIES}.scaffold:Scaffold", f"{_CLIENTS}.scaffold:ScaffoldClient", f"{_KEYS}.federated:ScaffoldHyper",
    ),
    "fedgtst": Method(
        "Features that transfer, by gradient norms", "FedGTST",
        f"{_STRATEGIES}.fedgtst:FedGTST", f"{_CLIENTS}.fedgtst:FedGTSTClient", f"{_KEYS}.federated:FedGTSTHyper",
    ),
    "fedsr": Method(
        "Simple representations", "Nguyen et al. 2022",
        f"{_STRATEGIES}.fedsr:FedSR", f"{_CLIENTS}.fedsr:FedSRClient", f"{_KEYS}.federated:FedSRHyper",
    ),
    "fediir": Method(
        "Aligned gradients of classifiers", "Guo et al. 2023",
        f"{_STRATEGIES}.fediir:FedIIR", f"{_CLIENTS}.fediir:FedIIRClient", f"{_KEYS}.federated:FedIIRHyper",
    ),
    "fedper": Method(
        "Shared body, personal head", "Arivazhagan et al. 2019",
        _SHARED_BODY, f"{_CLIENTS}.fedper:FedPerClient", _HEAD_KEYS,
        new_clients="the shared body and the initial head",
    ),
    "fedrep": Method(
        "Shared body, head fitted first", "Collins et al. 2021",
        _SHARED_BODY, f"{_CLIENTS}.fedrep:FedRepClient", f"{_KEYS}.personal:FedRepHyper",
        new_clients="the shared body and a head trained on its data",
    ),
    "fedbabu": Method(
        "Shared body under a fixed head", "Oh et al. 2022",
        _SHARED_BODY, f"{_CLIENTS}.fedbabu:FedBABUClient", f"{_KEYS}.personal:FedBABUHyper",
        new_clients="the shared body and the initial head",
    ),
    "fedbn": Method(
        "Shared network, personal batch norm", "Li et al. 2021",
        f"{_STRATEGIES}.fedbn:FedBN", f"{_CLIENTS}.fedbn:FedBNClient",
        new_clients="the shared network and the initial batch norm",
        first={"model": "cnn-bn"},
    ),
    "fedl2p": Method(
        "Learning how to fine-tune", "Lee et al. 2023",
        f"{_STRATEGIES}.fedl2p:FedL2P", f"{_CLIENTS}.fedl2p:FedL2PClient", f"{_KEYS}.fedl2p:FedL2PHyper",
        new_clients="the given model, fine-tuned as learned",
        first={"validation-fraction": 0.2, "finetune-epochs": 1, "fedl2p.pretraining-rounds": 10},
    ),
    "l2p": Method(
        "FedL2P without averaging: each client alone", "Lee et al. 2023",
        f"{_STRATEGIES}.l2p:L2P", f"{_CLIENTS}.l2p:L2PClient", f"{_KEYS}.fedl2p:FedL2PHyper", table="fedl2p",
        new_clients="the given model, fine-tuned by untrained meta-nets",
        first={"validation-fraction": 0.2, "finetune-epochs": 1, "fedl2p.pretraining-rounds": 10},
    ),
    "lg-fedavg": Method(
        "Personal body, shared head", "Liang et al. 2020",
        f"{_STRATEGIES}.families.decoupled:SharedHead", f"{_CLIENTS}.lg_fedavg:LGFedAvgClient", _HEAD_KEYS,
        new_clients="the initial body and the shared head",
    ),
    "ditto": Method(
        "Personal models tied to the global one", "Li et al. 2021",
        _FEDAVG, f"{_CLIENTS}.ditto:DittoClient", f"{_KEYS}.personal:DittoHyper",
    ),
    "pfedfda": Method(
        "Adapted generative classifiers", "McLaughlin, Su 2024",
        f"{_STRATEGIES}.pfedfda:PFedFDA", f"{_CLIENTS}.pfedfda:PFedFDAClient", f"{_KEYS}.personal:PFedFDAHyper",
        new_clients="the shared body and a classifier fitted to its data",
    ),
    "ppfe": Method(
        "Progressive personalised ensembles", "Emrani et al.",
        f"{_STRATEGIES}.ppfe:PPFE", f"{_CLIENTS}.ppfe:PPFEClient", f"{_KEYS}.ppfe:PPFEHyper",
        new_clients="the shared blocks and the initial head",
        first={"ppfe.personal-blocks": "0,1,2", "ppfe.stage-rounds": "10,10,10", "ppfe.ranks": "9,6,4"},
    ),
    "ppfe-linear": Method(
        "PPFE for linear regression", "Emrani et al., section 6.1",
        f"{_STRATEGIES}.ppfe_linear:PPFELinear", f"{_CLIENTS}.ppfe_linear:PPFELinearClient",
        f"{_KEYS}.ppfe:PPFELinearHyper", descends=False,
        first={
            "model": "linear", "rounds": 4, "dataset": "synthetic-linear", "partitioner": "natural",
            "samples-per-client": 60,
        },
    ),
    "per-fedavg": Method(
        "A model that adapts in a step", "Fallah et al. 2020",
        _FEDAVG, f"{_CLIENTS}.per_fedavg:PerFedAvgClient", f"{_KEYS}.personal:PerFedAvgHyper",
    ),
    "pfedme": Method(
        "Personal models by Moreau envelopes", "Dinh et al. 2020",
        _FEDAVG, f"{_CLIENTS}.pfedme:PFedMeClient", f"{_KEYS}.personal:PFedMeHyper",
    ),
    "knn-per": Method(
        "Nearest neighbours beside a global model", "Marfoq et al. 2022",
        f"{_STRATEGIES}.knn_per:KNNPer", f"{_CLIENTS}.knn_per:KNNPerClient", f"{_KEYS}.personal:KNNPerHyper",
        new_clients="the global model and its own nearest neighbours",
    ),
    "pefll": Method(
        "Models made of clients' descriptors", "Scott, thesis, chapter 4",
        f"{_STRATEGIES}.pefll:PeFLL", f"{_CLIENTS}.pefll:PeFLLClient", f"{_KEYS}.hypernetworks:PeFLLHyper",
        new_clients="a model generated from its examples",
    ),
    "pfedhn": Method(
        "Models made of learned descriptors", "Shamsian et al. 2021",
        f"{_STRATEGIES}.pfedhn:PFedHN", f"{_CLIENTS}.pfedhn:PFedHNClient", f"{_KEYS}.hypernetworks:PFedHNHyper",
        new_clients="a model generated from a descriptor fitted to its data",
    ),
    "feddp-kmeans": _clustering(
        "Private clustering", "Scott, thesis, chapter 6", "feddp_kmeans:FedDPKMeans", "feddp_kmeans:FedDPKMeansClient"
    ),
    "server-kmeans++": _clustering("k-means++ of the server's data", "reference", "server_kmeans_pp:ServerKMeansPP"),
    "server-lloyds": _clustering("k-means of the server's data", "reference", "server_lloyds:ServerLloyds"),
    "sphere-packing": _clustering("Centres without data", "Su et al. 2017", "sphere_packing:SpherePacking"),
    "k-fed": _clustering(
        "One-shot clustering of centres", "Dennis et al. 2021", "k_fed:KFed", "k_fed:KFedClient"
    ),
    "optimal": _clustering("k-means of all data in one place", "reference", "optimal:Optimal"),
    "flowdup": Method(
        "Models of unlabeled data, in a subspace", "FLowDUP",
        f"{_STRATEGIES}.flowdup:FLowDUP", f"{_CLIENTS}.flowdup:FLowDUPClient", f"{_KEYS}.subspace:FLowDUPHyper",
        new_clients="a model generated from its inputs",
        first={"flowdup.dimensions": 1000},
    ),
    "ld-fedavg": Method(
        "FedAvg in a random subspace", "FLowDUP, section 5.1",
        f"{_STRATEGIES}.ld_fedavg:LDFedAvg", f"{_CLIENTS}.ld_fedavg:LDFedAvgClient", f"{_KEYS}.subspace:SubspaceHyper",
        first={"ld-fedavg.dimensions": 1000},
    ),
    "fedtta": Method(
        "A model that adapts to unlabeled inputs", "Ye et al. 2024",
        f"{_STRATEGIES}.fedtta:FedTTA", f"{_CLIENTS}.fedtta:FedTTAClient", f"{_KEYS}.subspace:FedTTAHyper",
        new_clients="the global model, adapted to its inputs",
    ),
    "mdm": Method(
        "How clients differ: a mixture model", "Scott, thesis, chapter 3",
        f"{_STRATEGIES}.mdm:MDM", f"{_CLIENTS}.mdm:MDMClient", f"{_KEYS}.mdm:MDMHyper", task="histograms",
        descends=False, new_clients="no model",
    ),
    "describe": Method(
        "What clients' tables hold, and who differs", "reference",
        f"{_STRATEGIES}.statistics.describe:Describe", f"{_CLIENTS}.statistics.describe:DescribeClient",
        f"{_KEYS}.statistics:DescribeHyper", task="columns", descends=False, new_clients="no model",
        implies={"model": "linear", "participation": 1.0},
        first=_HOSPITALS,
    ),
    "survival": Method(
        "Survival curves and Cox models from sums", "Cox 1972; Andreux et al. 2020",
        f"{_STRATEGIES}.statistics.survival:Survival", f"{_CLIENTS}.statistics.survival:SurvivalClient",
        f"{_KEYS}.statistics:SurvivalHyper", descends=False, implies={"model": "linear", "participation": 1.0},
        first={**_HOSPITALS, "dataset": "fed-tcga-brca"},
    ),
    "glm": Method(
        "Regression with exact sums, and its intervals", "McCullagh, Nelder 1989",
        f"{_STRATEGIES}.statistics.glm:GLM", f"{_CLIENTS}.statistics.glm:GLMClient", f"{_KEYS}.statistics:GLMHyper",
        descends=False, implies={"model": "linear", "participation": 1.0},
    ),
    "trees": Method(
        "Boosted trees, from histograms of gradients", "Chen, Guestrin 2016; Tian et al. 2020",
        f"{_STRATEGIES}.statistics.trees:BoostedTrees", f"{_CLIENTS}.statistics.trees:TreesClient",
        f"{_KEYS}.trees:BoostingHyper", table="boosting", descends=False,
        implies={"model": "trees", "participation": 1.0},
    ),
    "feddyn": Method(
        "Dynamically regularised local objectives", "Acar et al. 2021",
        f"{_STRATEGIES}.feddyn:FedDyn", f"{_CLIENTS}.feddyn:FedDynClient", f"{_KEYS}.federated:FedDynHyper",
    ),
    "fednova": Method(
        "Updates normalised by local steps", "Wang et al. 2020",
        f"{_STRATEGIES}.fednova:FedNova", f"{_CLIENTS}.fednova:FedNovaClient", f"{_KEYS}.federated:FedNovaHyper",
    ),
    "moon": Method(
        "Model-contrastive training", "Li et al. 2021",
        _FEDAVG, f"{_CLIENTS}.moon:MoonClient", f"{_KEYS}.federated:MoonHyper",
    ),
    "apfl": Method(
        "Mixtures of a local and the global model", "Deng et al. 2020",
        _FEDAVG, f"{_CLIENTS}.apfl:APFLClient", f"{_KEYS}.mixing:APFLHyper",
    ),
    "fedala": Method(
        "The global model mixed in, by element", "Zhang et al. 2023",
        _FEDAVG, f"{_CLIENTS}.fedala:FedALAClient", f"{_KEYS}.mixing:FedALAHyper",
    ),
    "fedrod": Method(
        "A generic and a personal head", "Chen, Chao 2022",
        f"{_STRATEGIES}.fedrod:FedRoD", f"{_CLIENTS}.fedrod:FedRoDClient", f"{_KEYS}.mixing:FedRoDHyper",
        new_clients="the shared body and the generic head",
    ),
    "feddbe": Method(
        "Personal biases of representations", "Zhang et al. 2023",
        f"{_STRATEGIES}.feddbe:FedDBE", f"{_CLIENTS}.feddbe:FedDBEClient", f"{_KEYS}.mixing:FedDBEHyper",
    ),
    "fedamp": Method(
        "Mixtures of similar clients' models", "Huang et al. 2021",
        f"{_STRATEGIES}.fedamp:FedAMP", f"{_CLIENTS}.fedamp:FedAMPClient", f"{_KEYS}.bank:FedAMPHyper",
        new_clients="the mean of all clients' models",
    ),
    "fedfomo": Method(
        "Steps towards the models that help", "Zhang et al. 2021",
        f"{_STRATEGIES}.fedfomo:FedFomo", f"{_CLIENTS}.fedfomo:FedFomoClient", f"{_KEYS}.bank:FedFomoHyper",
        new_clients="a combination of other clients' models",
    ),
    "apple": Method(
        "Learned combinations of clients' models", "Luo, Wu 2022",
        f"{_STRATEGIES}.apple:APPLE", f"{_CLIENTS}.apple:APPLEClient", f"{_KEYS}.bank:APPLEHyper",
        new_clients="the mean of all clients' models",
    ),
    "ifca": Method(
        "K models, each client picks the best", "Ghosh et al. 2020",
        f"{_STRATEGIES}.ifca:IFCA", f"{_CLIENTS}.ifca:IFCAClient", f"{_KEYS}.clustered:IFCAHyper",
        new_clients="the cluster's model with the lowest training loss",
    ),
    "cfl": Method(
        "Clusters split by directions of updates", "Sattler et al. 2019",
        f"{_STRATEGIES}.cfl:CFL", f"{_CLIENTS}.cfl:ComparedClient", f"{_KEYS}.clustered:CFLHyper",
        new_clients="the model of the cluster that its update points to",
    ),
    "fl-hc": Method(
        "One hierarchical clustering of updates", "Briggs et al. 2020",
        f"{_STRATEGIES}.fl_hc:FLHC", f"{_CLIENTS}.cfl:ComparedClient", f"{_KEYS}.clustered:FLHCHyper",
        new_clients="the model of the cluster that its update points to",
    ),
    "flux": Method(
        "Clusters by descriptors of the data", "Fenoglio et al. 2025",
        f"{_STRATEGIES}.flux:FLUX", f"{_CLIENTS}.flux:FLUXClient", f"{_KEYS}.clustered:FLUXHyper",
        new_clients="the model of the cluster with the nearest descriptor",
    ),
    "fedproto": Method(
        "Personal models with common prototypes", "Tan et al. 2022",
        f"{_STRATEGIES}.fedproto:FedProto", f"{_CLIENTS}.fedproto:FedProtoClient", f"{_KEYS}.classwise:FedProtoHyper",
        new_clients="the initial model",
    ),
    "feddistill": Method(
        "Mean logits of classes distilled", "Jeong et al. 2018",
        f"{_STRATEGIES}.feddistill:FedDistill", f"{_CLIENTS}.feddistill:FedDistillClient",
        f"{_KEYS}.classwise:FedDistillHyper",
        new_clients="the initial model",
    ),
    "fedgen": Method(
        "Local training on generated features too", "Zhu et al. 2021",
        f"{_STRATEGIES}.fedgen:FedGen", f"{_CLIENTS}.fedgen:FedGenClient", f"{_KEYS}.classwise:FedGenHyper",
    ),
    "prior-shift": Method(
        "Logits moved to the client's class prior", "Saerens et al. 2002",
        f"{_STRATEGIES}.prior_shift:PriorShift", f"{_CLIENTS}.prior_shift:PriorShiftClient",
        f"{_KEYS}.classwise:PriorShiftHyper",
        new_clients="the shared model, moved to its class prior",
    ),
    "ditto-prior": Method(
        "Ditto with the client's class prior", "Li et al. 2021; Menon et al. 2021",
        _FEDAVG, f"{_CLIENTS}.ditto_prior:DittoPriorClient", f"{_KEYS}.composed:DittoPriorHyper",
        new_clients="the global model, moved to its class prior",
    ),
    "pefll-prior": Method(
        "PeFLL with the client's class prior", "Scott, thesis, chapter 4; Menon et al. 2021",
        f"{_STRATEGIES}.pefll:PeFLL", f"{_CLIENTS}.pefll_prior:PeFLLPriorClient", f"{_KEYS}.composed:PeFLLPriorHyper",
        new_clients="a model generated from its examples, moved to its class prior",
    ),
    "fedcp": Method(
        "Features separated by a policy", "Zhang et al. 2023",
        f"{_STRATEGIES}.fedcp:FedCP", f"{_CLIENTS}.fedcp:FedCPClient", f"{_KEYS}.conditional:FedCPHyper",
        new_clients="the shared body and head",
    ),
    "gpfl": Method(
        "Global features beside personal ones", "Zhang et al. 2023",
        f"{_STRATEGIES}.gpfl:GPFL", f"{_CLIENTS}.gpfl:GPFLClient", f"{_KEYS}.conditional:GPFLHyper",
        new_clients="the shared body and the class embeddings",
    ),
    "hyperfedzero": Method(
        "Classifiers made for each input", "Zhou et al. 2025, by its abstract",
        f"{_STRATEGIES}.hyperfedzero:HyperFedZero", f"{_CLIENTS}.hyperfedzero:HyperFedZeroClient",
        f"{_KEYS}.zero_shot:HyperFedZeroHyper",
        new_clients="classifiers generated for its inputs",
    ),
    "heterofl": Method(
        "Sub-networks that fit the clients' sizes", "Diao et al. 2021",
        f"{_STRATEGIES}.heterofl:HeteroFL", f"{_CLIENTS}.heterofl:HeteroFLClient", f"{_KEYS}.capacity:CapacityHyper",
        table="capacity", new_clients="the global model's part of their size",
    ),
    "fedrolex": Method(
        "Sub-networks that roll over the channels", "Alam et al. 2022",
        f"{_STRATEGIES}.fedrolex:FedRolex", f"{_CLIENTS}.heterofl:HeteroFLClient", f"{_KEYS}.capacity:CapacityHyper",
        table="capacity", new_clients="the global model's part of their size",
    ),
    "fedit": Method(
        "LoRA: A and B averaged", "Zhang et al. 2024",
        _FEDAVG, f"{_CLIENTS}.fedavg:FedAvgClient", implies=_LORA,
        first=_ADAPTED,
    ),
    "ffa-lora": Method(
        "LoRA: A stays as it is drawn", "Sun et al. 2024",
        _FEDAVG, f"{_CLIENTS}.fedavg:FedAvgClient", implies={**_LORA, "adapter.fixed": "A"},
        first=_ADAPTED,
    ),
    "fedsa-lora": Method(
        "LoRA: A shared, B personal", "Guo et al. 2025",
        f"{_STRATEGIES}.fedsa_lora:FedSALoRA", f"{_CLIENTS}.fedsa_lora:FedSALoRAClient",
        f"{_KEYS}.personal:FedSALoRAHyper",
        new_clients="the shared A, and the initial B and head", implies={**_LORA, "adapter.fixed": ""},
        first=_ADAPTED,
    ),
    "flora": _ranked("LoRA: exact means join the base", "Wang et al. 2024", "flora:FLoRA", _CORRECTED),
    "fedex-lora": _ranked(
        "LoRA: means, and what they miss", "Singhal et al. 2025", "fedex_lora:FedExLoRA", _CORRECTED,
    ),
    "flexlora": _ranked("LoRA: the mean update taken apart", "Bai et al. 2024", "flexlora:FlexLoRA", _PRODUCTS),
    "hetlora": _ranked(
        "LoRA: unequal ranks, padded and pruned", "Cho et al. 2024", "hetlora:HetLoRA", _PRODUCTS,
        "hetlora:HetLoRAClient",
    ),
    "hlora": _ranked("LoRA: as many components as there are", "Liu et al. 2025", "hlora:HLoRA", _PRODUCTS),
    "local": Method("Each client alone", "reference", f"{_STRATEGIES}.local:Local", f"{_CLIENTS}.local:LocalClient",
                    new_clients="the initial model"),
}  # fmt: skip
