#!/usr/bin/env bash
# Subject: torch
# What: `nn.init.trunc_normal_`, which initialises vision transformers, draws other numbers from the same seed in PyTorch 2.11.0 and 2.15.0. `randn`, `randperm` and dropout do not.
# Symptom: A repeated experiment begins with another model after an update of PyTorch, or devices that initialise from a shared seed have different models.
# Concerns: repeated experiments, and protocols that send a seed instead of a model
# Expected: a seed gives the same numbers in the same order on the same machine, as all other initialisations and samplers do in these versions.
# Seen: 600 numbers of `trunc_normal_` after `manual_seed(7)`: all differ, on a CPU.
# Here: The server makes the initial model and sends it. A run keeps PyTorch's version, and names it where a repetition differs.
# Test: tests/apps/origins/test_provenance.py::test_differences_are_those_that_matter
. "$(dirname "$0")/environment"
cat > draw.py << 'END'
import sys

import torch
from torch import nn

draws = {
    "randn": lambda: torch.randn(1000),
    "randperm": lambda: torch.randperm(1000),
    "dropout": lambda: nn.Dropout(0.3)(torch.ones(1000)),
    "kaiming_normal_": lambda: nn.init.kaiming_normal_(torch.empty(20, 30)),
    "linear layer": lambda: nn.Linear(30, 20).weight.detach(),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(20, 30)),
    "randn in bfloat16": lambda: torch.randn(1000, dtype=torch.bfloat16).float(),
    "rand in float16": lambda: torch.rand(1000, dtype=torch.half).float(),
}
found = {}
for name, draw in draws.items():
    torch.manual_seed(7)
    found[name] = draw()
torch.save(found, sys.argv[1])
END
install torch==2.11.0 numpy==2.4.6
python draw.py before.pt
install torch==2.15.0
python draw.py after.pt
python - << 'END'
import torch

before, after = torch.load("before.pt"), torch.load("after.pt")
same = {name: torch.equal(before[name], after[name]) for name in before}
print(same)
differ = before["trunc_normal_"] != after["trunc_normal_"]
print(f"trunc_normal_: {differ.sum()} of {differ.numel()} numbers differ")
assert {name for name, equal in same.items() if not equal} == {"trunc_normal_", "randn in bfloat16", "rand in float16"}
END
