#!/usr/bin/env bash
# Subject: torch
# What: The mean of `cross_entropy` in float16 is 0 for more than 65,504 targets, as the number of targets overflows to infinity. Its gradient is 0, too.
# Symptom: A language model or a segmentation network in float16 has a perfect loss on large batches, and learns nothing.
# Concerns: networks in half precision with a target for each position
# Expected: means of float16 tensors are accumulated in float32; `losses.mean()` of the same losses is right.
# Seen: 65,504 targets: 0.693; 65,536 targets: 0.0, on a CPU.
# Here: Networks in other precisions than float32 are refused, and losses of positions are means over examples.
# Test: tests/models/test_adapt.py::test_what_is_refused
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6
python - << 'END'
import torch
from torch.nn.functional import cross_entropy

for targets in (65_504, 65_536):
    outputs = torch.zeros(targets, 2, dtype=torch.float16, requires_grad=True)
    y = torch.zeros(targets, dtype=torch.long)
    loss = cross_entropy(outputs, y)
    (gradient,) = torch.autograd.grad(loss * 1e4, outputs)
    right = cross_entropy(outputs, y, reduction="none").mean()
    print(f"{targets} targets: {loss:.4f}, mean of the single losses {right:.4f}, gradient {gradient.abs().max():.2g}")
    assert abs(right - 0.693) < 1e-3
    assert (loss == 0) == (targets > 65_504) == (gradient.abs().max() == 0)
END
