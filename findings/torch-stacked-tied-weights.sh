#!/usr/bin/env bash
# Subject: torch
# What: `module.to("meta")` unties shared weights. `functional_call` then computes with a weight on "meta" that no argument replaces, and returns uninitialised memory instead of an error.
# Symptom: Clients that are evaluated or trained together with `torch.func` return random numbers, from one call to the next, for models with tied embeddings.
# Concerns: many clients' models in one call
# Expected: the tutorial on model ensembling copies a model to "meta" as the function of `stack_module_state`; computing with two devices is an error.
# Seen: outputs of the copy on "meta" are on the CPU, of any size, such as 1e33 or 0, and change from call to call.
# Here: Networks are stacked on their own device, a tied weight once.
# Test: tests/models/test_stacked.py::test_tied_weights_are_one
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6
python - << 'END'
import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        self.last.weight = self.table.weight

    def forward(self, x):
        return self.last(self.table(x).mean(1))


torch.manual_seed(0)
clients, x = [Tied() for _ in range(3)], torch.randint(0, 9, (4, 6))
right = torch.stack([client(x) for client in clients])
stacked = stack_module_state(clients)
for device in ("cpu", "meta"):
    base = copy.deepcopy(clients[0]).to(device)
    found = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(*stacked)  # noqa: B023
    tied = base.last.weight is base.table.weight
    print(f"{device}: tied {tied}, outputs on {found.device}, equal to the models' own: {torch.allclose(found, right)}")
    assert tied == (device == "cpu") == torch.allclose(found, right)
    assert found.device.type == "cpu"
END
