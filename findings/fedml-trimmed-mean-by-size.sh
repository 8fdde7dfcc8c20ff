#!/usr/bin/env bash
# Subject: fedml
# What: The coordinate-wise trimmed mean sorts clients by their numbers of examples and leaves out the smallest and largest clients; updates are not looked at.
# Symptom: The result is FedAvg of the clients of middle size, whatever their updates are.
# Concerns: robust aggregation with FedML, and comparisons with it
# Expected: for each coordinate the mean without the β·n smallest and the β·n largest values, as its documentation and source (Yin et al. 2018, definition 2) have it.
# Seen: of five updates 1 to 5, from clients with 30, 10, 20, 50 and 40 examples, β = 0.2 keeps 3, 1 and 5, not 2, 3 and 4.
# Here: The trimmed mean leaves out the outer values of each coordinate, as sorting shows.
# Test: tests/strategies/robust/test_rules.py::test_median_and_trimmed_mean
. "$(dirname "$0")/environment"
install fedml==0.9.6 torch==2.11.0 'setuptools<81'
python - << 'END'
from types import SimpleNamespace
import torch
from fedml.core.security.defense.coordinate_wise_trimmed_mean_defense import CoordinateWiseTrimmedMeanDefense

updates, examples = (1.0, 2.0, 3.0, 4.0, 5.0), (30, 10, 20, 50, 40)
replies = [(n, {"w": torch.tensor([update])}) for n, update in zip(examples, updates)]
kept = CoordinateWiseTrimmedMeanDefense(SimpleNamespace(beta=0.2)).defend_before_aggregation(replies)
print("kept (examples, update):", [(n, model["w"].item()) for n, model in kept])
assert [model["w"].item() for _, model in kept] == [3.0, 1.0, 5.0]
END
