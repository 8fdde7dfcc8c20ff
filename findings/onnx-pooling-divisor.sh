#!/usr/bin/env bash
# Subject: torch, onnxruntime
# What: The ONNX export of `AvgPool2d(divisor_override=5)` ignores the divisor: the file divides by the size of the window.
# Symptom: The exported model is less accurate than the trained one; nothing was reported.
# Concerns: whoever deploys trained networks as ONNX files
# Expected: the layer's documentation: the divisor is used instead of the size of the pooling region.
# Seen: every output is 5/9 of PyTorch's.
# Here: Files are compared with the network on random inputs before they are written; one that differs is an error.
# Test: tests/clients/core/test_standalone.py::test_a_file_that_computes_something_else_is_refused
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
python - << 'END'
import onnxruntime
import torch
from torch import nn

torch.manual_seed(0)
network, x = nn.AvgPool2d(3, 2, divisor_override=5).eval(), torch.rand(2, 4, 9, 9)
torch.onnx.export(network, (x,), dynamo=True, verbose=False).save("model.onnx")
session = onnxruntime.InferenceSession("model.onnx")
(found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
ratio = torch.from_numpy(found) / network(x)
print(f"ONNX Runtime ÷ PyTorch: {ratio.min():.4f} to {ratio.max():.4f}; 5/9 = {5 / 9:.4f}")
assert (ratio - 5 / 9).abs().max() < 1e-4
END
