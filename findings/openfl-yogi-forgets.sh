#!/usr/bin/env bash
# Subject: openfl
# What: Yogi's second moment decays by β₂ as Adam's does, and loses (1 − β₂)g² besides when gradients are small: it forgets large gradients faster than Adam, not more slowly.
# Symptom: After a round with large updates, `YogiAdaptiveAggregation` takes steps larger than Adam's, where Yogi's would be several times smaller.
# Concerns: adaptive server steps with OpenFL, and comparisons of FedYogi with FedAdam
# Expected: v − (1 − β₂) sign(v − g²) g², as in Zaheer et al. (2018) and in "Adaptive Federated Optimization" (Reddi et al. 2021), which its documentation names.
# Seen: after 30 gradients of 1 and 30 of 0.1 with β₂ = 0.9, v is 0.970 by the paper's rule, 0.050 by Adam's, 0.031 by OpenFL's.
# Here: FedYogi's second moment changes by (1 − β₂)g² in a step, as in the paper.
# Test: tests/methods/test_global_models.py::TestServerSteps::test_three_steps_by_hand
. "$(dirname "$0")/environment"
install openfl==1.9 numpy==2.4.6
python - << 'END'
import numpy as np
from openfl.utilities.optimizers.numpy import NumPyAdam, NumPyYogi

β = 0.9
yogi, adam = (kind(params={"w": np.zeros(1)}, betas=(0.0, β)) for kind in (NumPyYogi, NumPyAdam))
paper = of_adam = 0.0
for gradient in [1.0] * 30 + [0.1] * 30:
    for rule in (yogi, adam):
        rule.step({"w": np.array([gradient])})
    square = gradient**2
    paper -= (1 - β) * np.sign(paper - square) * square
    of_adam = β * of_adam + (1 - β) * square
found, of_their_adam = (rule.grads_second_moment["w"].item() for rule in (yogi, adam))
print(f"v by the paper's rule {paper:.3f}, by Adam's {of_adam:.3f}; OpenFL's Yogi {found:.3f}, OpenFL's Adam {of_their_adam:.3f}")
assert np.isclose(of_their_adam, of_adam)
assert paper > 0.9 and found < of_adam < 0.1
END
