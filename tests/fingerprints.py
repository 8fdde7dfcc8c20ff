"""Fingerprints of a short run of every method, to show that a change of the code has changed no result.

    python -m tests.fingerprints before.json            then, after the change:
    python -m tests.fingerprints after.json before.json

For every method, and for options that take another way through the code, a run of a few rounds is carried out through
the in-process grid, once with two nodes and once as ``florilegium pareto`` does it, and with ``--simulation`` in Ray.
Written are hashes of the last checkpoint's model and strategy state and of ``clients.csv``, and the byte counts. With a
second file, the differences are printed, and the exit status says whether there are any. Nothing here is an expected
value: hashes depend on the processor and on the versions of torch and NumPy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import defaults
from florilegium.common.settings import Value
from florilegium.strategies.core.run_folder import read_checkpoint
from tests.support import config

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
}  # fmt: skip
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
    "pfedhn": SMALL_HYPERNETWORK,
    "flowdup": SUBSPACE | {"labeled-fraction": 0.67},
    "ld-fedavg": SUBSPACE,
    "fedtta": {"fedtta.width": 16},
    "cfl": {"cfl.epsilon-1": 2.0, "cfl.epsilon-2": 0.0},
    "fl-hc": {"fl-hc.warmup-rounds": 0},
    "flux": {"flux.warmup-rounds": 0},
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
}  # fmt: skip
"""Options that take another way through the code."""


def cases() -> dict[str, Keys]:
    """Return the keys of every run, by a name."""
    result: dict[str, Keys] = {}
    for name, method in METHODS.items():
        result[name] = COMMON | (POINTS if method.task == "clustering" else {}) | OWN.get(name, {}) | {"method": name}
    return result | {name: COMMON | keys for name, keys in VARIANTS.items()}


def fingerprint(run: Path) -> dict[str, Any]:
    """Return the hashes and byte counts of a finished run."""
    checkpoint = read_checkpoint(run)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    clients = run / "clients.csv"
    return {
        "model": _hash(checkpoint.arrays),
        "state": _hash(checkpoint.state),
        "facts": _digest(json.dumps(checkpoint.facts["own"], sort_keys=True).encode()),
        "clients": _digest(clients.read_bytes()) if clients.exists() else "",
        "bytes": [summary["bytes_down"], summary["bytes_up"]],
    }


def _hash(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def in_process(name: str, keys: Keys, folder: Path) -> dict[str, Any]:
    """Return the fingerprints of the two runs in this process."""
    from florilegium.apps.engines.one_process import run_here
    from tests.grid import run_app

    whole = config(**{**keys, "runs-dir": str(folder)})
    run_app({**whole, "run-name": "grid"}, nodes=2)
    run_here({**whole, "run-name": "here"}, folder / "here")
    return {"grid": fingerprint(folder / "grid"), "here": fingerprint(folder / "here")}


def simulated(wanted: Mapping[str, Keys], folder: Path) -> dict[str, Any]:
    """Return the fingerprints of runs in Ray, two workers."""
    from florilegium.apps.engines.progress import silent
    from florilegium.apps.engines.ray_simulation import Simulation
    from florilegium.apps.runs.experiment import run_experiment

    found = {}
    with Simulation(2) as simulation:
        for number, (name, keys) in enumerate(wanted.items()):
            differing = {k: v for k, v in config(**keys).items() if v != defaults()[k]}
            changed = {**differing, "runs-dir": str(folder), "run-name": f"simulated-{number}"}
            found[name] = fingerprint(run_experiment(simulation, changed, silent))
    return found


def main() -> int:
    """Write the fingerprints; compare them where there is something to compare them with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("--simulation", action="store_true", help="also in Ray; takes ten minutes")
    parser.add_argument("--only", default="", help="runs whose names contain one of these words, separated by |")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    wanted = {name: keys for name, keys in cases().items() if any(word in name for word in arguments.only.split("|"))}
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as home:
        for number, (name, keys) in enumerate(wanted.items()):
            print(name, file=sys.stderr, flush=True)
            (folder := Path(home) / str(number)).mkdir()
            found[name] = in_process(name, keys, folder)
        if arguments.simulation:
            for name, prints in simulated(wanted, Path(home)).items():
                found[name]["simulation"] = prints
    arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if arguments.before is None:
        return 0
    before = json.loads(arguments.before.read_text(encoding="utf-8"))
    different = [
        f"{name}, {way}, {what}: {before[name][way].get(what)} → {value}"
        for name, ways in found.items()
        for way, prints in ways.items()
        for what, value in prints.items()
        if name in before and way in before[name] and before[name][way].get(what) != value
    ]
    print(*different, f"{len(different)} differences in {len(found)} runs", sep="\n")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
