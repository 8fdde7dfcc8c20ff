#!/usr/bin/env bash
# Subject: torchmetrics
# What: `R2Score` sums squares in float32. For targets with deviation 1 it is 0 with mean 10,000, and 1 with mean 100,000, instead of 0.35.
# Symptom: R² of prices, years or counts is far too low, or 1.
# Concerns: regression on targets far from zero
# Expected: R² does not depend on the targets' origin, and is never above 1; `PearsonCorrCoef` of the same package is right here.
# Seen: true 0.351; with means 1,000, 10,000 and 100,000: 0.342, 0.000, 1.0006.
# Here: Sums are kept in float64 from the client's figures to the pooled one, and R² that rounding would spoil is not a number.
# Test: tests/tasks/test_metrics.py::test_r2_does_not_depend_on_the_targets_origin
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
python - << 'END'
import torch
from sklearn.metrics import r2_score
from torchmetrics.regression import R2Score

torch.manual_seed(0)
y = torch.randn(300)
guess = y + 0.67 * torch.randn(300)
right = r2_score(y, guess)
for mean in (0.0, 1e3, 1e4, 1e5):
    shifted = (guess.double() + mean).float(), (y.double() + mean).float()
    found, exact = float(R2Score()(*shifted)), r2_score(shifted[1].double(), shifted[0].double())
    print(f"targets' mean {mean:7.0f}: R2Score {found:.4f}, in float64 {exact:.4f}")
    assert abs(exact - right) < 0.01
    assert (abs(found - exact) > 0.3) == (mean >= 1e4)
END
