#!/usr/bin/env bash
# Subject: fedml
# What: The geometric medians (`RFA`, `geometric_median`) keep the clients' weights in a set: equal numbers of examples count once, and as many clients are left out.
# Symptom: With equally large clients the result is the model of the first one alone; no error, no warning.
# Concerns: robust aggregation with FedML, and comparisons with it
# Expected: the point with the least weighted sum of distances to all clients' models (Pillutla et al. 2022, equation 3), in any order of the clients.
# Seen: five models at 1, 2, 3, 4 and 9 of equally large clients: 1 instead of their median, 3. In reverse order: 9.
# Here: The weighted pulls of all clients at the geometric median add up to 0.
# Test: tests/strategies/robust/test_rules.py::test_geometric_median_minimises_the_weighted_sum_of_distances
. "$(dirname "$0")/environment"
install fedml==0.9.6 torch==2.11.0 'setuptools<81'
python - << 'END'
from types import SimpleNamespace
import torch
from fedml.core.security.defense.geometric_median_defense import GeometricMedianDefense
from fedml.core.security.defense.RFA_defense import RFADefense

settings = SimpleNamespace(
    training_type="simulation", backend="sp", using_gpu=False, byzantine_client_num=1, client_num_per_round=5, batch_num=5
)
for rule in (RFADefense, GeometricMedianDefense):
    for models in ((1.0, 2.0, 3.0, 4.0, 9.0), (9.0, 4.0, 3.0, 2.0, 1.0)):
        replies = [(100, {"w": torch.tensor([model])}) for model in models]
        found = rule(settings).defend_on_aggregation(replies)["w"].item()
        print(f"{rule.__name__}, models {models}: {found:.2f}; their median is 3.00")
        assert abs(found - models[0]) < 1e-6
END
