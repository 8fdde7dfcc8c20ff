"""Fingerprints of short runs of every method and of every layer, to show that a change of the code changes no result.

This module says what is run; ``ways`` says how, ``hashing`` what is written of it, ``__main__`` how to call it, and
``package`` holds all that is imported of the suite. Nothing here is an expected value: hashes depend on the processor
and on the versions of torch and NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.fingerprints.package import METHODS, Value

Keys = dict[str, Value]

COMMON: Keys = {
    "num-clients": 6, "participation": 0.67, "rounds": 3, "local-epochs": 1, "evaluate-every": 2, "seed": 7,
}  # fmt: skip
POINTS: Keys = {
    "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid", "num-clients": 8,
    "samples-per-client": 60, "server-examples": 120, "server-ood-examples": 40, "participation": 1.0, "rounds": 2,
}  # fmt: skip
SMALL_HYPERNETWORK: Keys = {
    "model": "linear", "unseen-fraction": 0.34, "server-learning-rate": 0.1, "pefll.hidden-width": 8,
    "pefll.descriptor-size": 4, "pfedhn.hidden-width": 8, "pfedhn.descriptor-size": 4, "pfedhn.new-client-exchanges": 2,
}  # fmt: skip
SUBSPACE: Keys = {
    "flowdup.dimensions": 30, "flowdup.features": 7, "flowdup.width": 6, "ld-fedavg.dimensions": 30,
    "weighting": "uniform",
}  # fmt: skip
TUNED: Keys = {
    "model": "cnn-bn", "validation-fraction": 0.2, "finetune-epochs": 1, "fedl2p.pretraining-rounds": 1,
    "fedl2p.neumann-steps": 1,
}  # fmt: skip
PPFE: Keys = {
    "ppfe.personal-blocks": "0,1,2", "ppfe.stage-rounds": "1,1,1", "ppfe.ranks": "9,6,4", "participation": 1.0,
    "rounds": 3,
}  # fmt: skip
SECURE: Keys = {"secure-aggregation": True, "max-update-norm": 10.0, "participation": 1.0, "secure-vanishing": 0.34}
QUANTISED: Keys = {"compression.scheme": "quantise", "compression.bits": 4}
TOP_K: Keys = {"compression.scheme": "top-k", "compression.share": 0.05}
LOW_RANK: Keys = {"compression.scheme": "low-rank", "compression.rank": 1}
FLEET: Keys = {
    "fleet.speed": 50.0, "fleet.download": 4.0, "fleet.upload": 1.0, "fleet.dropout": 0.1, "fleet.memory": 8.0,
    "fleet.availability": "diurnal", "fleet.online": 0.7, "min-success": 0.0,
}  # fmt: skip
BUFFERED: Keys = {
    "mode": "buffered", "buffer.size": 2, "fleet.speed": 50.0, "fleet.speed-sigma": 1.5, "fleet.upload": 1.0,
    "rounds": 4,
}  # fmt: skip
NOISE = "privacy.noise-multiplier"
"""Runs with this key depend on secret randomness, which has a seed in this process alone."""
CLIENT_LEVEL: Keys = {"privacy.unit": "client", NOISE: 1.0, "weighting": "uniform", "max-update-norm": 0.0}
EXAMPLE_LEVEL: Keys = {"privacy.unit": "example", NOISE: 1.0}
LORA: Keys = {"adapter.targets": "fc1.1,fc2.0", "adapter.rank": 4}
RANKS: Keys = LORA | {"ranks.levels": "1,0.5"}
OWN: Mapping[str, Keys] = {
    "fedbn": {"model": "cnn-bn"},
    "k-fed": {"rounds": 1},
    "optimal": {"rounds": 1},
    "fedl2p": TUNED,
    "l2p": TUNED,
    "ppfe": PPFE,
    "ppfe-linear": {
        "dataset": "synthetic-linear", "partitioner": "natural", "model": "linear", "weighting": "uniform",
        "num-clients": 4, "samples-per-client": 40, "participation": 1.0, "rounds": 4,
    },
    "pefll": SMALL_HYPERNETWORK,
    "pefll-prior": {
        "model": "mlp", "unseen-fraction": 0.34, "server-learning-rate": 0.1, "pefll-prior.hidden-width": 8,
        "pefll-prior.descriptor-size": 4,
    },
    "pfedhn": SMALL_HYPERNETWORK,
    "flowdup": SUBSPACE | {"labeled-fraction": 0.67},
    "ld-fedavg": SUBSPACE,
    "fedtta": {"fedtta.width": 16},
    "cfl": {"cfl.epsilon-1": 2.0, "cfl.epsilon-2": 0.0},
    "fl-hc": {"fl-hc.warmup-rounds": 0},
    "fedit": LORA,
    "ffa-lora": LORA,
    "fedsa-lora": LORA,
    "flora": RANKS,
    "fedex-lora": RANKS,
    "flexlora": RANKS,
    "hetlora": RANKS | {"ranks.decay": 0.5},
    "hlora": RANKS,
    "flux": {"flux.warmup-rounds": 0},
    "describe": {
        "model": "linear", "dataset": "histograms", "partitioner": "natural", "num-clients": 6,
        "samples-per-client": 12, "mdm-params": "medium-2", "participation": 1.0, "rounds": 1,
    },
    "glm": {"model": "linear", "participation": 1.0, "glm.ridge": 1.0},
    "trees": {"model": "trees", "participation": 1.0, "trees.depth": 2, "trees.number": 8},
    "survival": {
        "model": "linear", "dataset": "tests.made_survival:patients", "task": "survival", "partitioner": "natural",
        "participation": 1.0,
    },
    "mdm": {
        "model": "linear", "dataset": "histograms", "partitioner": "natural", "num-clients": 30,
        "samples-per-client": 12, "mdm-params": "medium-2", "participation": 1.0, "mdm.components": "2,3",
        "mdm.validation-fraction": 0.2,
    },
}  # fmt: skip
"""What a method needs besides the common keys; methods that cluster take ``POINTS``."""
VARIANTS: Mapping[str, Keys] = {
    "fedavg, Adam, fine-tuned": {"method": "fedavg", "server-optimizer": "fedadam", "finetune-epochs": 1},
    "fedavg, momentum, unseen, median": {
        "method": "fedavg", "server-momentum": 0.9, "unseen-fraction": 0.34, "aggregation": "median",
    },
    "fedavg, early end": {
        "method": "fedavg", "validation-fraction": 0.2, "patience": 1, "evaluate-every": 1, "rounds": 6,
    },
    "fedavg, batch norm of clients": {
        "method": "fedavg", "model": "cnn-bn", "finetune-epochs": 1, "finetune-bn": "client", "learning-rate": 0.005,
    },
    "fedavg, clients clipped": {
        "method": "fedavg", "privacy.unit": "client", "weighting": "uniform", "privacy.clip-norm": float("inf"),
        "privacy.sampling": "fixed",
    },
    "fedprox, adaptive": {"method": "fedprox", "fedprox.adaptive": True},
    "scaffold, option 1": {"method": "scaffold", "scaffold.option": 1},
    "fedgtst, diagnosed": {"method": "fedgtst", "fedgtst.diagnose": True, "fedgtst.measured": "epoch"},
    "fedrep, unseen": {"method": "fedrep", "unseen-fraction": 0.34},
    "fedbabu, fine-tuned": {"method": "fedbabu", "finetune-epochs": 1, "fedbabu.finetune": "head"},
    "per-fedavg, Hessian-free": {"method": "per-fedavg", "per-fedavg.hessian": "hessian-free", "finetune-epochs": 1},
    "pfedme, unseen": {"method": "pfedme", "unseen-fraction": 0.34, "finetune-epochs": 1},
    "ppfe, sparse": PPFE | {"method": "ppfe", "ppfe.reduction": "sparse", "ppfe.warm-start": "first"},
    "pefll, Adam, masked": SMALL_HYPERNETWORK | {
        "method": "pefll", "server-optimizer": "adam", "pefll.mask-labels": True, "pefll.normalize": "each",
        "pefll.model-penalty": 0.01,
    },
    "fedl2p, FOMAML+": TUNED | {"method": "fedl2p", "fedl2p.hypergradient": "fomaml+"},
    "feddp-kmeans, clients": POINTS | {"method": "feddp-kmeans", "kmeans.privacy-unit": "client"},
    "feddp-kmeans, choice of k": POINTS | {
        "method": "feddp-kmeans", "kmeans.privacy-unit": "none", "kmeans.choose-k": 6,
    },
    "feddp-kmeans, noise of devices": POINTS | {"method": "feddp-kmeans", "kmeans.noise-at": "device"},
    "mdm, private": OWN["mdm"] | {
        "method": "mdm", "mdm.components": "2", "mdm.privacy-unit": "client", "mdm.max-size": 12,
    },
    "fedavg, norm bound": {"method": "fedavg", "max-update-norm": 1.28, "min-success": 0.0},
    "fedavg, trimmed mean": {"method": "fedavg", "aggregation": "trimmed-mean", "attackers": 1, "participation": 1.0},
    "fedavg, Krum": {"method": "fedavg", "aggregation": "krum", "attackers": 1, "participation": 1.0},
    "fedavg, secure": SECURE | {"method": "fedavg", "finetune-epochs": 1},
    "scaffold, secure": SECURE | {"method": "scaffold"},
    "fedproto, secure": SECURE | {"method": "fedproto", "max-update-norm": 0.0},
    "feddp-kmeans, secure": POINTS | SECURE | {"method": "feddp-kmeans", "max-update-norm": 0.0},
    "fedavg, secure, noise of devices": SECURE | CLIENT_LEVEL | {
        "method": "fedavg", "privacy.sampling": "fixed", "privacy.noise-at": "device",
    },
    "fedavg, secure, some vanish": SECURE | {
        "method": "fedavg", "num-clients": 12, "fleet.speed": 50.0, "fleet.dropout": 0.15,
    },
    "fedavg, quantised": QUANTISED | {"method": "fedavg"},
    "fedper, top-k": TOP_K | {"method": "fedper", "weighting": "uniform"},
    "scaffold, low-rank": LOW_RANK | {"method": "scaffold"},
    "fedavg, low-rank": LOW_RANK | {"method": "fedavg", "finetune-epochs": 1},
    "fedavg, fleet": FLEET | {"method": "fedavg", "oversample": 1.5, "num-clients": 10},
    "fedrep, fleet, top-k": FLEET | TOP_K | {"method": "fedrep", "num-clients": 10},
    "fedavg, buffered": BUFFERED | {"method": "fedavg", "buffer.max-staleness": 2},
    "fedper, buffered, models": BUFFERED | {"method": "fedper", "buffer.average": "models", "fleet.dropout": 0.2},
    "fedavg, stacked": {"method": "fedavg", "vectorise": 4, "validation-fraction": 0.2},
    "ditto, stacked": {"method": "ditto", "vectorise": 4},
    "fedper, stacked, top-k": TOP_K | {"method": "fedper", "vectorise": 4},
    "pefll, stacked": SMALL_HYPERNETWORK | {"method": "pefll", "vectorise": 4},
    "fedavg, clients private": CLIENT_LEVEL | {"method": "fedavg", "privacy.clip-quantile": 0.5, "num-clients": 30},
    "fedper, clients private, by layer": CLIENT_LEVEL | {"method": "fedper", "privacy.clipping": "layer"},
    "fedavg, clients private, tree": CLIENT_LEVEL | {
        "method": "fedavg", "privacy.sampling": "slots", "privacy.mechanism": "tree",
    },
    "fedavg, clients private, matrix": CLIENT_LEVEL | {
        "method": "fedavg", "privacy.sampling": "slots", "privacy.mechanism": "matrix", "rounds": 4,
    },
    "fedavg, examples private": EXAMPLE_LEVEL | {"method": "fedavg"},
    "fedper, examples private, ghost": EXAMPLE_LEVEL | {"method": "fedper", "privacy.gradients": "ghost"},
    "pefll, examples private": EXAMPLE_LEVEL | SMALL_HYPERNETWORK | {"method": "pefll"},
}  # fmt: skip
"""Options that take another way through the code."""
DEVICES: Mapping[str, Keys] = {
    "devices, fedavg, low-rank": LOW_RANK | {"method": "fedavg", "finetune-epochs": 1},
    "devices, ditto": {"method": "ditto"},
    "devices, ppfe, secure": PPFE | SECURE | {"method": "ppfe"},
    "devices, fedavg, private, secure": SECURE | CLIENT_LEVEL | {
        "method": "fedavg", "privacy.sampling": "fixed", "privacy.noise-at": "device",
    },
    "devices, fedper, examples private": EXAMPLE_LEVEL | {"method": "fedper"},
}  # fmt: skip
"""Runs whose nodes hold the data of one client each."""


def own(method: str) -> Keys:
    """Return the keys that a method needs besides the common ones."""
    return (POINTS if METHODS[method].task == "clustering" else {}) | OWN.get(method, {}) | {"method": method}


def cases() -> dict[str, Keys]:
    """Return the keys of every run, by a name."""
    result = {name: COMMON | own(name) for name in METHODS}
    return result | {name: COMMON | keys for name, keys in (*VARIANTS.items(), *DEVICES.items())}
