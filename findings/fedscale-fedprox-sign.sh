#!/usr/bin/env bash
# Subject: fedscale
# What: FedProx's proximal step has the wrong sign: after every step clients move away from the received model, by a share ηµ of the way from it.
# Symptom: The larger µ is, the further clients drift apart, where FedProx should hold them together.
# Concerns: FedProx with FedScale, and comparisons with it
# Expected: w − ηµ(w − w_t), the gradient step of µ/2·‖w − w_t‖² (Li et al. 2020, equation 2).
# Seen: parameters at 1 away from the received model, η = 0.1, µ = 0.5: 1.05 away after the step instead of 0.95.
# Here: A step of FedProx is the gradient of its objective.
# Test: tests/strategies/core/test_rounds.py::TestLimits::test_fedprox_step_is_the_gradient_of_its_objective
. "$(dirname "$0")/environment"
install fedscale==1.0 torch==2.15.0 numpy==2.4.6
python - << 'END'
from types import SimpleNamespace
import torch
from fedscale.cloud.execution.optimizers import ClientOptimizer

model = torch.nn.Linear(1, 1, bias=False)
received = [torch.zeros_like(p) for p in model.parameters()]
with torch.no_grad():
    model.weight.fill_(1.0)
settings = SimpleNamespace(gradient_policy="fed-prox", learning_rate=0.1, proxy_mu=0.5)
distances = [1.0]
for _ in range(3):
    ClientOptimizer().update_client_weight(settings, model, received)
    distances.append(round(model.weight.item(), 4))
print("distance from the received model, before and after three proximal steps:", distances)
print("gradient descent on the proximal term:                                  ", [round(0.95**i, 4) for i in range(4)])
assert distances == [1.0, 1.05, 1.1025, 1.1576]
END
