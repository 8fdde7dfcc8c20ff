"""The packages that are measured, their versions, and how the work of each differs from the common task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.peers.checkout import Checkout

METHODS = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "ditto": "Ditto"}


@dataclass(frozen=True)
class Peer:
    """A package, or a loop by hand.

    Attributes:
        name: shown in the table; ``{}`` stands for the number of workers.
        module: the script in this folder; those with the same one share an environment.
        methods: those that the package has.
        packages: what its environment has beside PyTorch; none: it runs in this environment.
        checkout: its source, if it is on no index; ``packages`` are then what its modules import.
        workers: their number, if it is not that of the other packages.
        differs: how its work differs from the task, by method.
        python: the environment's version of Python, such as "3.13"; "": this one's.
        launcher: words before ``-m``; ``{}`` stands for the number of workers.
    """

    name: str
    module: str
    methods: Sequence[str]
    packages: Sequence[str] = ()
    checkout: Checkout | None = None
    workers: int = 0
    differs: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    launcher: Sequence[str] = ()

    def notes(self, method: str) -> str:
        """Return the versions of the package and of Python, and how its work differs, in words."""
        versions = [self.checkout.notes] if self.checkout else [*self.packages]
        versions += [f"Python {self.python}"] if self.python else []
        return "; ".join(filter(None, [", ".join(versions), self.differs.get(method, "")]))


NO_MOMENTUM = "no momentum"
PFLLIB = Checkout("TsingZ0/PFLlib", "d832e76f6a23b833038949ec1e4fdefe63a4d350", "system")
FL_BENCH = Peer(
    "FL-bench, one process", "fl_bench", tuple(METHODS),
    (
        "hydra-core==1.3.2", "pandas==2.2.3", "Pillow==11.1.0", "pynvml==12.0.0", "ray==2.49.2", "rich==13.9.4",
        "scikit-learn==1.7.0", "torchvision",  # whose version follows from PyTorch's
    ),
    Checkout("KarhouTam/FL-bench", "06e658bca5af6ce732e25bb7c0f8be321e14a85e"),
    workers=1,
    differs={"scaffold": "clients' control variates stay zero"},
)  # fmt: skip


PEERS = (
    Peer("Florilegium, {} workers", "own", tuple(METHODS)),
    Peer("plain PyTorch loop, {} processes", "loop", tuple(METHODS)),
    Peer(
        "pfl-research, {} processes (`torchrun`)", "pfl_research", ("fedavg", "fedprox", "scaffold"),
        ("pfl[pytorch]==0.6.0",),
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{}"),
    ),
    Peer("stock Flower, {} workers", "flower", ("fedavg", "fedprox"), ("flwr[simulation]==1.42.0",)),
    Peer(
        "BlazeFL, {} processes", "blazefl", ("fedavg",), ("blazefl[contrib,reproducibility]==3.0.0a1",), python="3.13"
    ),
    Peer("fluke, one process", "fluke", tuple(METHODS), ("fluke-fl==0.8.1",)),
    Peer(
        "PFLlib, one process", "pfllib", tuple(METHODS), ("h5py==3.16.0", "matplotlib==3.11.2", "scikit-learn==1.9.1"),
        PFLLIB, differs=dict.fromkeys(("fedavg", "fedprox", "ditto"), NO_MOMENTUM),
    ),
    FL_BENCH,
    replace(FL_BENCH, name="FL-bench, {} workers (Ray)", workers=0),
)  # fmt: skip
