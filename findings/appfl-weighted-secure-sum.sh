#!/usr/bin/env bash
# Subject: appfl
# What: Secure aggregation with weights is wrong in both ways: where clients scale, their sum is divided by their number again; where the server does, their masks do not cancel.
# Symptom: The model hardly moves (by a K-th for K clients), or is noise after the first round; nothing is reported. Equal weights are right.
# Concerns: secure aggregation with APPFL for clients of unequal sizes
# Expected: the mean of the updates, weighted by examples, as without secure aggregation.
# Seen: four clients with 10 to 40 examples, weighted mean 3: 0.75 with `secure_agg_client_weights_mode: num_examples`, a deviation of 0.45 around 3 with `client_weights_mode: sample_size`.
# Here: A secure sum has the weighted mean of the same run without it.
# Test: tests/strategies/layers/test_secure_aggregation.py::test_results_are_those_of_the_plain_run
. "$(dirname "$0")/environment"
install appfl==1.12.0 torch==2.15.0 torchvision numpy==2.4.6 setuptools
python - << 'END'
import torch
from appfl.algorithm.aggregator import FedAvgAggregator
from appfl.privacy import SecureAggregator
from omegaconf import OmegaConf

EXAMPLES = {"a": 10, "b": 20, "c": 30, "d": 40}
UPDATES = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
TOTAL = sum(EXAMPLES.values())


def aggregated(scaled_by_clients, server_mode):
    payloads = {}
    for client, count in EXAMPLES.items():
        delta = torch.full((2000,), UPDATES[client]) * (count / TOTAL if scaled_by_clients else 1)
        masks = SecureAggregator(client, EXAMPLES, b"shared", torch.device("cpu"))
        flat, shapes = masks.mask_update({"weight": delta}, 0)
        payloads[client] = {"type": "masked_update_flat", "flat": flat, "shapes": shapes, "num_examples": count}
    server = FedAvgAggregator(aggregator_configs=OmegaConf.create({"use_secure_agg": True, "client_weights_mode": server_mode}))
    return server.aggregate(payloads)["weight"]


mean = sum(EXAMPLES[c] * UPDATES[c] for c in EXAMPLES) / TOTAL
equal, clients, server = aggregated(False, "equal"), aggregated(True, "equal"), aggregated(False, "sample_size")
for name, found in (("equal weights", equal), ("weighted by clients", clients), ("weighted by the server", server)):
    print(f"{name}: mean {found.mean():.2f}, deviation {found.std():.2f}; the weighted mean is {mean}, the plain one 2.5")
assert torch.allclose(equal, torch.tensor(2.5), atol=1e-4)
assert torch.allclose(clients, torch.tensor(mean / 4), atol=1e-4) and server.std() > 0.1
END
