#!/usr/bin/env bash
# Subject: opacus
# What: For packed batches in no order of length, Opacus' LSTM sorts its per-example gradients and other layers do not: clipping adds norms of different examples.
# Symptom: Differentially private training on sequences is worse than expected, and the stated ε does not hold.
# Concerns: text and time series under example-level privacy
# Expected: `DPLSTM` is documented as a drop-in replacement that takes a `PackedSequence`; `GradSampleModule` gives gradients for each example.
# Seen: weights of the LSTM differ by 0.2, its sum over examples is right; batches sorted by length are right.
# Here: A dry run compares single examples' gradients before a private run, and refuses the network.
# Test: tests/privacy/test_alone.py::test_what_opacus_gets_wrong_is_refused
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 opacus==1.6.0
python - << 'END'
import copy

import torch
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = DPLSTM(5, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, lengths):
        _, (h, _) = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.last(h[-1])


def errors(lengths):
    """Return the largest error of an example's gradients, and of their sum, by layer."""
    torch.manual_seed(0)
    network, x, weights = Reader(), torch.randn(3, 6, 5), torch.randn(3, 2)
    alone = []
    for i in range(3):
        one = copy.deepcopy(network)
        (one(x[i : i + 1], lengths[i : i + 1]) * weights[i]).sum().backward()
        alone.append([p.grad for p in one.parameters()])
    (GradSampleModule(network, loss_reduction="sum")(x, lengths) * weights).sum().backward()
    found = {}
    for (name, p), *right in zip(network.named_parameters(), *alone, strict=True):
        each, total = p.grad_sample - torch.stack(right), p.grad_sample.sum(0) - sum(right)
        found[name] = (round(float(each.abs().max()), 4), round(float(total.abs().max()), 4))
    return found


ordered, mixed = errors(torch.tensor([6, 4, 3])), errors(torch.tensor([3, 6, 4]))
print("sorted by length:", ordered)
print("not sorted:      ", mixed)
assert all(each < 1e-5 for each, _ in ordered.values())
assert mixed["lstm.weight_ih_l0"][0] > 0.1 and mixed["lstm.weight_ih_l0"][1] < 1e-5
assert mixed["last.weight"][0] < 1e-5
END
