#!/usr/bin/env bash
# Subject: torch
# What: `index_add_` in bfloat16 rounds after every addition: sums of ones stop at 256. `scatter_add_` and `sum` add up in float32.
# Symptom: Sums by class, client or cluster stop growing; prototypes and centres of large groups are too short.
# Concerns: sums by group of features in bfloat16, as in prototype methods and mixtures of experts
# Expected: both functions are documented as sums at indices; `scatter_add_` in bfloat16 is right.
# Seen: 100,000 ones: `sum` and `scatter_add_` 99,840, `index_add_` 256, on a CPU.
# Here: Features and sums are in float32 or float64: networks in other precisions are refused.
# Test: tests/models/test_adapt.py::test_what_is_refused
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6
python - << 'END'
import torch

ones, group = torch.ones(100_000, dtype=torch.bfloat16), torch.zeros(100_000, dtype=torch.long)
found = {
    "sum": ones.sum().item(),
    "scatter_add_": torch.zeros(1, dtype=torch.bfloat16).scatter_add_(0, group, ones).item(),
    "index_add_": torch.zeros(1, dtype=torch.bfloat16).index_add_(0, group, ones).item(),
}
print(found)
assert found == {"sum": 99_840, "scatter_add_": 99_840, "index_add_": 256}
END
