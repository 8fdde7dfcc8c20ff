#!/usr/bin/env bash
# Subject: river
# What: The Rand index, the adjusted Rand index and mutual information count an `update` with a weight as one record, so that they leave their ranges. Accuracy is right.
# Symptom: The agreement of clusters with domains is above 1 or below 0 once clients' counts are added up.
# Concerns: federated clustering that is evaluated from counts
# Expected: a weight of 2 is the same as two updates, as for all other figures with the same argument.
# Seen: 90 records as they are: Rand index 0.84, adjusted 0.63. The same records as a table of counts: −22.6 and 1.005.
# Here: The suite's studies compute the adjusted Rand index from the clients' labels, by scikit-learn.
. "$(dirname "$0")/environment"
install river==0.26.1
python - << 'END'
import random
from collections import Counter

from river import metrics

random.seed(0)
domains = [random.randrange(3) for _ in range(90)]
records = [(domain, domain if random.random() < 0.8 else random.randrange(3)) for domain in domains]
found = {}
for kind in (metrics.Rand, metrics.AdjustedRand, metrics.MutualInfo, metrics.Accuracy, metrics.CohenKappa):
    single, counted = kind(), kind()
    for domain, cluster in records:
        single.update(domain, cluster)
    for (domain, cluster), number in Counter(records).items():
        counted.update(domain, cluster, w=number)
    found[kind.__name__] = single.get(), counted.get()
    print(f"{kind.__name__}: {single.get():.4f} record by record, {counted.get():.4f} by counts")
right = {name for name, (single, counted) in found.items() if abs(single - counted) < 1e-9}
assert right == {"Accuracy", "CohenKappa"}
assert found["Rand"][1] < -20 and found["AdjustedRand"][1] > 1
END
