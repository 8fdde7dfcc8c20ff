#!/usr/bin/env bash
# Subject: torch, onnxruntime
# What: PyTorch's `logsigmoid` and `logaddexp` are exact for large numbers. Their ONNX exports exponentiate first, and return −inf and inf from about ±90 on.
# Symptom: Scores of confident predictions are infinite in the deployed model, finite in the trained one.
# Concerns: whoever deploys trained networks as ONNX files
# Expected: both functions are documented as numerically stable.
# Seen: logsigmoid(−200) is −200 and −inf; logaddexp(200, −200) is 200 and inf.
# Here: Networks are written with the activation of their task, sigmoid or softmax, and compared, also with large inputs.
# Test: tests/clients/core/test_standalone.py::test_files_of_confident_networks_are_finite
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
python - << 'END'
import math

import onnxruntime
import torch
from torch import nn


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def both(function):
    x = torch.tensor([-200.0, -1.0, 200.0])
    torch.onnx.export(Of(function), (x,), dynamo=True, verbose=False).save("model.onnx")
    session = onnxruntime.InferenceSession("model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return function(x).tolist(), found.tolist()


right, found = both(nn.functional.logsigmoid)
print("logsigmoid: PyTorch", right, "ONNX Runtime", found)
assert right[0] == -200 and found[0] == -math.inf and abs(right[1] - found[1]) < 1e-6
right, found = both(lambda x: torch.logaddexp(x, -x))
print("logaddexp:  PyTorch", right, "ONNX Runtime", found)
assert right[2] == 200 and found[2] == math.inf and abs(right[1] - found[1]) < 1e-6
END
