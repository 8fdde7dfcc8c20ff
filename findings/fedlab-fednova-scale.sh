#!/usr/bin/env bash
# Subject: fedlab
# What: FedNova's default, `option="weighted_scale"`, multiplies the mean of the sampled clients' updates by all clients ÷ sampled ones.
# Symptom: With a tenth of the clients a round the server overshoots by ten, and training diverges; with all clients nothing is wrong.
# Concerns: FedNova with FedLab where clients are sampled, and comparisons with it
# Expected: clients that take equally many steps and move by the same vector move the server by this vector, as in the paper (Wang et al. 2020, equation 6) and in FedAvg.
# Seen: ten of a hundred clients, each moved by 1: the server moves by 10 by default, by 1 with the three other options.
# Here: With equal numbers of steps a round of FedNova is one of FedAvg, to the last bit.
# Test: tests/methods/test_global_models.py::TestFedNova::test_equal_numbers_of_steps_are_fedavg_bit_for_bit
. "$(dirname "$0")/environment"
install fedlab==1.3.0 torch==2.15.0 torchvision numpy==2.4.6 setuptools
python - << 'END'
import torch
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler

moved = {}
for option in ("default", "uniform", "weighted_com", "other"):
    server = FedNovaServerHandler(torch.nn.Linear(3, 2), global_round=1, sample_ratio=0.1)
    server.num_clients = 100
    server.setup_optim(*() if option == "default" else (option,))
    before = server.model_parameters
    steps = torch.tensor([5.0])  # the same for every client
    server.global_update([[before + 1, steps] for _ in range(server.num_clients_per_round)])
    moved[option] = (server.model_parameters - before).mean().item()
    print(f"{option}: {server.num_clients_per_round} of {server.num_clients} clients move by 1, the server by {moved[option]:.2f}")
assert abs(moved.pop("default") - 10) < 1e-4
assert all(abs(move - 1) < 1e-4 for move in moved.values())
END
