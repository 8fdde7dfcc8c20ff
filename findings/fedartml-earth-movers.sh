#!/usr/bin/env bash
# Subject: fedartml
# What: The earth mover's distance takes clients' class frequencies for samples of one quantity, not for weights of classes. It depends on their sorted values alone.
# Symptom: Clients that share no class have a distance of 0, the same as clients with equal distributions; then a square root is taken.
# Concerns: figures of how far from identically distributed a federated data set is, and experiments that are ordered by them
# Expected: distance 0 for equal distributions alone; with distance 1 between any two classes it is half the sum of absolute differences.
# Seen: two clients with one class each, not the same: 0.0 instead of 1.0. The same library's Hellinger and Jensen-Shannon distances are 1.0.
# Here: Differences of clients' classes are those of SciPy, and 1 for clients that share none.
# Test: tests/methods/test_describe.py::test_distances_are_those_of_scipy
. "$(dirname "$0")/environment"
install fedartml==0.1.34 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3 scikit-learn matplotlib plotly ipywidgets
python - << 'END'
from fedartml.function_base import earth_movers_distance, hellinger_distance, jensen_shannon_distance

clients = {
    "no class in common": [[1.0, 0.0], [0.0, 1.0]],
    "the same classes": [[0.5, 0.5], [0.5, 0.5]],
    "one class or both": [[1.0, 0.0], [0.5, 0.5]],
}
found = {}
for name, frequencies in clients.items():
    found[name] = round(float(earth_movers_distance(frequencies)), 4)
    others = [round(float(f(frequencies)), 4) for f in (hellinger_distance, jensen_shannon_distance)]
    right = sum(abs(a - b) for a, b in zip(*frequencies)) / 2
    print(f"{name}: earth mover's {found[name]}, should be {right}; Hellinger and Jensen-Shannon {others}")
assert found["no class in common"] == 0.0 == found["the same classes"] and found["one class or both"] > 0.7
END
