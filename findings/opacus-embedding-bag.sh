#!/usr/bin/env bash
# Subject: opacus
# What: Opacus counts an id once, however often it occurs in a bag of `nn.EmbeddingBag`; with `mode="max"`, all gradients are zero. Bags of ids without offsets raise an error.
# Symptom: Frequent words hardly train; with `max`, private training adds noise alone to the table.
# Concerns: bags of words and categories under example-level privacy
# Expected: `EmbeddingBag` is among the layers that Opacus registers a grad sampler for.
# Seen: the bag with an id twice has half of that id's gradient; bags without repetitions are right.
# Here: A dry run compares single examples' gradients before a private run, and refuses the network.
# Test: tests/privacy/test_alone.py::test_what_opacus_gets_wrong_is_refused
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 opacus==1.6.0
python - << 'END'
import copy

import torch
from opacus import GradSampleModule
from torch import nn

IDS, OFFSETS = torch.tensor([1, 2, 3, 4, 5, 5, 6]), torch.tensor([0, 2, 4])  # the last bag holds 5 twice


def gradients(mode):
    """Return the per-example gradients of Opacus and of autograd: (bags, ids, 1) each."""
    torch.manual_seed(0)
    bags = nn.EmbeddingBag(8, 1, mode=mode)
    right = []
    for i in range(3):
        bags.zero_grad()
        bags(IDS, OFFSETS)[i].sum().backward()
        right.append(bags.weight.grad.clone())
    private = GradSampleModule(copy.deepcopy(bags), loss_reduction="sum")
    private(IDS, OFFSETS).sum().backward()
    return private._module.weight.grad_sample, torch.stack(right)


found, right = gradients("sum")
print("id 5 of the last bag: Opacus", found[2, 5].item(), "autograd", right[2, 5].item())
assert torch.equal(found[:2], right[:2]) and found[2, 5] == 1 and right[2, 5] == 2
found, right = gradients("max")
print("mode='max', sum of all gradients: Opacus", found.sum().item(), "autograd", right.sum().item())
assert found.abs().max() == 0 and right.sum() == 3
try:
    GradSampleModule(nn.EmbeddingBag(8, 1, mode="sum"))(IDS[:6].view(3, 2)).sum().backward()
except ValueError as error:
    print("ids (3, 2) without offsets:", error)
else:
    raise SystemExit("no error any more")
END
