#!/usr/bin/env bash
# Subject: torch
# What: `base.to("meta")` before `functional_call`, as in PyTorch's tutorial of model ensembles, unties shared weights: the second use computes with uninitialised memory.
# Symptom: Vectorised training of clients' networks with tied embeddings gives huge or arbitrary outputs; without the step to "meta" they are right.
# Concerns: many clients' networks trained at once by `torch.func`
# Expected: `functional_call` ties weights by default, and complains about missing data on "meta" elsewhere.
# Seen: outputs up to 1e38 on a CPU instead of at most 20; they differ from run to run.
# Here: Tied weights are one parameter in training of several clients at once, and no network is on "meta".
# Test: tests/models/test_stacked.py::test_tied_weights_are_one
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6
python - << 'END'
import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


torch.manual_seed(0)
networks, tokens = [Language() for _ in range(3)], torch.tensor([1, 2, 5])
parameters, buffers = stack_module_state(networks)
assert list(parameters) == ["embedding.weight"]
expected = torch.stack([network(tokens) for network in networks])
close = {}
for step in ("as it is", "on meta"):
    base = copy.deepcopy(networks[0])
    base = base.to("meta") if step == "on meta" else base
    outputs = vmap(lambda own, rest: functional_call(base, (own, rest), (tokens,)))(parameters, buffers)
    assert outputs.device.type == "cpu"
    close[step] = torch.allclose(outputs, expected, atol=1e-4)
    print(f"{step}: largest output {outputs.abs().max():.3g}, right: {close[step]}")
assert close == {"as it is": True, "on meta": False}
END
