#!/usr/bin/env bash
# Subject: fl4health
# What: With `weighted_aggregation`, private FedAvgM forms the weighted mean of the updates, adds noise, and divides by the number of clients again.
# Symptom: With n clients the server takes a step of 1/n of theirs: training hardly moves, the less the more clients there are.
# Concerns: client-level privacy with FL4Health for clients of unequal sizes
# Expected: clients that all move by the same vector move the server by it, as without weights and as in the source (McMahan et al. 2018, algorithm 1).
# Seen: 5, 10 and 20 clients that move by 1, without noise: 0.2, 0.1 and 0.05 with weights, 1 without.
# Here: The released sum is divided once, by the expected weight of a round.
# Test: tests/strategies/layers/test_client_privacy.py::test_sums_are_divided_by_the_expected_number_of_clients
needs=3.10
. "$(dirname "$0")/environment"
install fl4health==0.4.2 flwr==1.18.0 torch==2.6.0 numpy==1.26.4
python - << 'END'
import numpy as np
from fl4health.strategies.noisy_aggregate import gaussian_noisy_unweighted_aggregate, gaussian_noisy_weighted_aggregate

for n in (5, 10, 20):
    replies = [([np.ones(1)], 10) for _ in range(n)]  # updates, numbers of examples
    cap = 10.0 * n  # the default of the strategy: all examples; clients' weights then add up to 1
    weighted = gaussian_noisy_weighted_aggregate(replies, 0.0, 1.0, 1.0, cap, sum(10 / cap for _ in range(n)))[0].item()
    plain = gaussian_noisy_unweighted_aggregate(replies, 0.0, 1.0)[0].item()
    print(f"{n} clients move by 1, the server by {weighted:.3f} with weights and {plain:.3f} without")
    assert abs(weighted - 1 / n) < 1e-9 and abs(plain - 1) < 1e-9
END
