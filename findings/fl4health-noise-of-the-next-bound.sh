#!/usr/bin/env bash
# Subject: fl4health
# What: With adaptive clipping the server first moves the clipping bound, then adds noise in proportion to the new one. The updates were clipped to the old one.
# Symptom: While the bound shrinks, rounds have less noise than they are accounted for, and more while it grows.
# Concerns: client-level privacy with adaptive clipping in FL4Health
# Expected: noise z_Δ·Cᵗ on the sum of updates clipped to Cᵗ, and then Cᵗ⁺¹ (Andrew et al. 2021, algorithm 1).
# Seen: a bound of 1, all updates within it: noise for 0.56, the bound of the next round. All longer: for 1.52.
# Here: Noise is in proportion to the bound that the round's updates were clipped to.
# Test: tests/strategies/layers/test_client_privacy.py::test_adapting_the_bound_costs_noise_and_no_budget
needs=3.10
. "$(dirname "$0")/environment"
install fl4health==0.4.2 flwr==1.18.0 torch==2.6.0 numpy==1.26.4
python - << 'END'
import logging
from types import SimpleNamespace
import numpy as np
from fl4health.strategies.client_dp_fedavgm import ClientLevelDPFedAvgM
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

logging.disable(logging.CRITICAL)
for within, follows in ((1.0, 0.56), (0.0, 1.52)):
    np.random.seed(1)
    zeros = np.zeros(100_000)
    server = ClientLevelDPFedAvgM(
        initial_parameters=ndarrays_to_parameters([zeros]), adaptive_clipping=True, initial_clipping_bound=1.0,
        weight_noise_multiplier=1.0, clipping_noise_multiplier=5.0,
    )
    reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([zeros, np.array(within)]), 10, {})
    server.aggregate_fit(1, [(SimpleNamespace(cid=str(i)), reply) for i in range(100)], [])
    found = server.current_weights[0].std() * 100 / server.modify_noise_multiplier()
    print(f"share within the bound of 1: {within:.0f}; noise is for a bound of {found:.2f}, the next is {server.clipping_bound:.2f}")
    assert abs(found - follows) < 0.01 and abs(server.clipping_bound - follows) < 0.01
END
