#!/usr/bin/env bash
# Subject: nvflare
# What: Global histograms round the edges of bins to four decimals, whatever `precision` says, and add up bins whose rounded edges are the same, once for each of them.
# Symptom: A feature whose bins are narrower than 0.0001 has a global histogram of more records than there are, in bins of no width.
# Concerns: federated statistics with NVIDIA FLARE of quantities in small units, such as concentrations in mol/L
# Expected: the histogram of the pooled values; in other units the same counts.
# Seen: 2,000 values from 40 to 120 µmol/L: right in µmol/L; in mol/L, with precision 8, they are 5,596.
# Here: Bins are counted by their number, between edges that are not rounded; descriptions are compared with those of pooled rows.
# Test: tests/methods/test_describe.py::test_all_rows_together_are_as_pandas_has_them
. "$(dirname "$0")/environment"
install nvflare==2.9.0 numpy==2.4.6 pandas
python - << 'END'
import numpy as np
from nvflare.app_common.abstract.statistics_spec import BinRange, Histogram, HistogramType
from nvflare.app_common.app_constant import StatisticsConstants as Names
from nvflare.app_common.statistics.numeric_stats import get_global_stats
from nvflare.app_common.statistics.numpy_utils import get_std_histogram_buckets

rng = np.random.default_rng(0)
hospitals = {name: rng.uniform(40, 120, size=1000) for name in ("a", "b")}  # µmol/L


def counts(unit):
    replies = {}
    for name, values in hospitals.items():
        bins = get_std_histogram_buckets(values * unit, 8, BinRange(40 * unit, 120 * unit))
        replies[name] = {"train": {"creatinine": Histogram(HistogramType.STANDARD, bins)}}
    asked = Names.STATS_2nd_STATISTICS
    found = get_global_stats({}, {Names.STATS_HISTOGRAM: replies}, asked, {Names.STATS_HISTOGRAM: {}}, precision=8)
    return [(b.low_value, b.high_value, b.sample_count) for b in found[Names.STATS_HISTOGRAM]["train"]["creatinine"].bins]


pooled = np.histogram(np.concatenate([*hospitals.values()]), bins=8, range=(40, 120))[0]
micro, molar = counts(1.0), counts(1e-6)
print("pooled:  ", pooled.tolist(), pooled.sum())
print("in µmol/L", [int(b[2]) for b in micro], sum(b[2] for b in micro))
print("in mol/L ", [int(b[2]) for b in molar], sum(b[2] for b in molar), "edges", [b[:2] for b in molar])
assert [b[2] for b in micro] == pooled.tolist()
assert sum(b[2] for b in molar) > 4000
END
