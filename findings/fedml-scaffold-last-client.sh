#!/usr/bin/env bash
# Subject: fedml
# What: With SCAFFOLD the server adds up the clients' updates, then replaces each sum by the last client's update. So it does with the variates.
# Symptom: Training follows one client of each round; the result depends on the order of the clients, and their sizes count for nothing.
# Concerns: SCAFFOLD with FedML, and comparisons with it
# Expected: the model moves by the mean of the clients' updates, the server's variate by their sum of changes ÷ all clients (Karimireddy et al. 2020, algorithm 1).
# Seen: three clients of ten with 10, 20 and 30 examples move by 1, 2 and 6: the model moves by 6, not by 3.83 or 3. The other way round it moves by 1.
# Here: The server's variate is the mean of the clients' own, and its step their mean update.
# Test: tests/methods/test_scaffold.py::test_server_variate_is_the_mean_of_the_clients_own
. "$(dirname "$0")/environment"
install fedml==0.9.6 torch==2.11.0 'setuptools<81'
python - << 'END'
from types import SimpleNamespace
import torch
from fedml.ml.aggregator.agg_operator import FedMLAggOperator

settings = SimpleNamespace(federated_optimizer="SCAFFOLD", client_num_in_total=10)
clients = ((10, 1.0, 0.1), (20, 2.0, 0.2), (30, 6.0, 0.6))  # examples, update, change of the variate


def aggregate(order):
    replies = [(n, {"w": torch.tensor([update])}, {"w": torch.tensor([change])}) for n, update, change in order]
    model, variate = FedMLAggOperator.agg(settings, replies)
    return round(model["w"].item(), 4), round(variate["w"].item(), 4)


mean = sum(n * update for n, update, _ in clients) / sum(n for n, _, _ in clients)
print(f"the mean of the updates is {mean:.2f}, the variate's step should be {sum(c for _, _, c in clients) / 10:.2f}")
there, back = aggregate(clients), aggregate(clients[::-1])
print(f"FedML's steps of model and variate: {there}; with the clients in reverse order: {back}")
assert there == (6.0, 0.06) and back == (1.0, 0.01)
END
