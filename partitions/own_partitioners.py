"""The table of the suite's partitioners: one entry for each, with references that are imported when used."""

from __future__ import annotations

from florilegium.partitions.partitioning import Partitioning

_HERE = "florilegium.partitions.partitioners"
_KEYS = f"{_HERE}.keys"

OWN_PARTITIONERS: dict[str, Partitioning | str] = {
    "iid": Partitioning("identically distributed clients", f"{_HERE}.iid:make", rows="all"),
    "classes": Partitioning(
        "S classes for each client", f"{_HERE}.classes:make", rows="shared", chooses_rows=True, numbers=False
    ),
    "dirichlet": Partitioning("class shares from a Dirichlet", f"{_HERE}.dirichlet:make", rows="all", numbers=False),
    "rotation": Partitioning(
        "each client's images rotated", f"{_HERE}.rotation:make", views=f"{_HERE}.rotation:views", rows="all",
        numbers=False,
    ),
    "natural": Partitioning("clients named by a column", f"{_HERE}.natural:make", natural=True),
    "mdm": Partitioning(
        "histograms from a mixture model", f"{_HERE}.mdm:make", columns=f"{_HERE}.mdm:columns", chooses_rows=True,
        numbers=False,
    ),
    "shard": Partitioning(
        "shards of rows sorted by class", f"{_HERE}.shard:make", f"{_KEYS}:ShardKeys", numbers=False
    ),
    "size": Partitioning("given sizes", f"{_HERE}.sizes:make", f"{_KEYS}:SizeKeys"),
    "linear": Partitioning("sizes that grow linearly", f"{_HERE}.sizes:make_linear", rows="all"),
    "square": Partitioning("sizes that grow as squares", f"{_HERE}.sizes:make_square", rows="all"),
    "exponential": Partitioning("sizes that grow exponentially", f"{_HERE}.sizes:make_exponential", rows="all"),
    "inner-dirichlet": Partitioning(
        "given sizes, class mixes from a Dirichlet", f"{_HERE}.inner_dirichlet:make", f"{_KEYS}:InnerDirichletKeys",
        columns=f"{_HERE}.inner_dirichlet:columns", numbers=False,
    ),
    "distribution": Partitioning(
        "few classes, amounts from a distribution", f"{_HERE}.distribution:make", f"{_KEYS}:DistributionKeys",
        numbers=False, files=("file",),
    ),
    "pathological": Partitioning(
        "a fixed number of classes", f"{_HERE}.pathological:make", f"{_KEYS}:PathologicalKeys", numbers=False
    ),
    "continuous": Partitioning(
        "rows sorted by a number, with noise", f"{_HERE}.continuous:make", f"{_KEYS}:ContinuousKeys",
        columns=f"{_HERE}.continuous:columns", rows="all",
    ),
    "grouped-natural": Partitioning(
        "groups of natural clients", f"{_HERE}.grouped_natural:make", f"{_KEYS}:GroupedNaturalKeys", natural=True
    ),
    "pfllib-pathological": Partitioning(
        "PFLlib's split by classes", f"{_HERE}.pfllib:make_pathological", f"{_KEYS}:PfllibPathologicalKeys",
        rows="all", held_out=0.25, numbers=False,
    ),
    "pfllib-practical": Partitioning(
        "PFLlib's Dirichlet split", f"{_HERE}.pfllib:make_practical", f"{_KEYS}:PfllibPracticalKeys",
        rows="all", held_out=0.25, numbers=False,
    ),
    "extended-dirichlet": Partitioning(
        "a few classes, shares from a Dirichlet", f"{_HERE}.extended_dirichlet:make",
        f"{_KEYS}:ExtendedDirichletKeys", rows="all", numbers=False,
    ),
    "quantity-skew": Partitioning(
        "sizes from a Dirichlet", f"{_HERE}.quantity_skew:make", f"{_KEYS}:QuantitySkewKeys", rows="all"
    ),
    "noise": Partitioning(
        "noise in each client's images", f"{_HERE}.noise:make", f"{_KEYS}:NoiseKeys", views=f"{_HERE}.noise:views",
        rows="all", numbers=False,
    ),
    "file": Partitioning(
        "a split of your own", keys=f"{_KEYS}:FileKeys", split="florilegium.partitions.split_files:read", rows="shared",
        files=("path",),
    ),
}  # fmt: skip
"""The suite's partitioners by name; ``registry.PARTITIONERS`` has those of other packages too."""
