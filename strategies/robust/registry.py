"""The registry of robust rules: the suite's own, and what other packages provide."""

from __future__ import annotations

from florilegium.common.plugins import Registry, subclass_of
from florilegium.strategies.robust.rule import Rule

_HERE = "florilegium.strategies.robust"

RULES: Registry[type[Rule]] = Registry(
    "aggregation",
    "a rule that combines updates",
    {
        "mean": f"{_HERE}.mean:Mean",
        "median": f"{_HERE}.median:Median",
        "trimmed-mean": f"{_HERE}.trimmed_mean:TrimmedMean",
        "krum": f"{_HERE}.krum:Krum",
        "multi-krum": f"{_HERE}.krum:MultiKrum",
        "bulyan": f"{_HERE}.bulyan:Bulyan",
        "geometric-median": f"{_HERE}.geometric_median:GeometricMedian",
        "centred-clipping": f"{_HERE}.centred_clipping:CentredClipping",
        "fltrust": f"{_HERE}.fltrust:FLTrust",
        "foolsgold": f"{_HERE}.foolsgold:FoolsGold",
        "dnc": f"{_HERE}.dnc:DnC",
        "norm-bound": f"{_HERE}.norm_bound:NormBound",
    },
    subclass_of(Rule, "Rule"),
)
"""All rules by name (:mod:`florilegium.common.plugins`)."""
