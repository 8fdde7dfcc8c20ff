#!/usr/bin/env bash
# Subject: opacus
# What: With `batch_first=True` and several heads, `DPMultiheadAttention` puts the heads' results together in the wrong order. Its outputs are not those of `nn.MultiheadAttention`.
# Symptom: A privately trained transformer predicts nonsense once it is loaded into the ordinary layer.
# Concerns: transformers under example-level privacy
# Expected: the class is documented as a drop-in replacement of `nn.MultiheadAttention`, with the same parameters and state.
# Seen: outputs differ by 0.7 with two heads; attention weights, one head, and `batch_first=False` agree.
# Here: Layers are never replaced. PyTorch's attention, for which Opacus has no per-example gradients, is refused before a private run.
# Test: tests/privacy/test_alone.py::test_attention_of_pytorch_is_refused_and_never_replaced
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 opacus==1.6.0
python - << 'END'
import torch
from opacus.layers import DPMultiheadAttention
from torch import nn


def difference(heads, batch_first):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, heads, batch_first=batch_first)
    private = DPMultiheadAttention(8, heads, batch_first=batch_first)
    private.load_state_dict(plain.state_dict())
    x = torch.randn(3, 5, 8)
    (y, w), (y2, w2) = plain(x, x, x), private(x, x, x)
    return float((y - y2).abs().max()), float((w - w2).abs().max())


for heads, batch_first in ((2, False), (1, True), (2, True)):
    outputs, weights = difference(heads, batch_first)
    print(f"heads {heads}, batch_first={batch_first}: outputs differ by {outputs:.3f}, weights by {weights:.0e}")
    assert weights < 1e-5
    assert (outputs > 0.1) == (heads > 1 and batch_first)
END
