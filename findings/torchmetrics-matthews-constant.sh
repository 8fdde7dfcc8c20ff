#!/usr/bin/env bash
# Subject: torchmetrics
# What: A binary predictor that always says the same has Matthews correlation ±0.84 or 1 in torchmetrics, depending on the share of positives, instead of 0.
# Symptom: A client whose model has collapsed to one class looks like the best of all.
# Concerns: evaluation on clients with rare positives
# Expected: the coefficient is 0 for a constant predictor by convention, as in scikit-learn.
# Seen: nine of ten negative, all predicted negative: 0.84; all predicted positive: −0.84; scikit-learn 0.
# Here: Undefined figures are not a number and are counted; balanced accuracy of a constant predictor is 0.5.
# Test: tests/tasks/test_metrics.py::test_a_constant_predictor_is_no_better_than_chance
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
python - << 'END'
import torch
from sklearn.metrics import matthews_corrcoef
from torchmetrics.classification import BinaryMatthewsCorrCoef, MulticlassMatthewsCorrCoef

y = torch.tensor([0] * 9 + [1])
for said in (0, 1):
    constant = torch.full((10,), said)
    found = float(BinaryMatthewsCorrCoef()(constant, y))
    classes = float(MulticlassMatthewsCorrCoef(2)(constant, y))
    right = matthews_corrcoef(y, constant)
    print(f"always {said}: binary {found:.2f}, as two classes {classes:.2f}, scikit-learn {right:.2f}")
    assert abs(abs(found) - 0.8433) < 1e-3 and right == 0
END
