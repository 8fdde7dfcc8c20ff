#!/usr/bin/env bash
# Subject: flexclash
# What: `trimmed_mean` leaves out the b smallest values and only the b − 1 largest, as its slice ends one too late.
# Symptom: The result is too large by about half a gap between neighbouring values, with honest clients alone.
# Concerns: robust aggregation with FLEXible and FLEXclash, and comparisons with it
# Expected: the mean without the b smallest and the b largest values of each coordinate, symmetric: of −x it is minus that of x.
# Seen: of 1 to 10 with a proportion of 0.1: 6.0 instead of 5.5; of −1 to −10: −5.0.
# Here: As many values are left out above as below.
# Test: tests/strategies/robust/test_rules.py::test_as_many_are_trimmed_as_there_are_attackers
. "$(dirname "$0")/environment"
install flexclash==0.0.3 flexible-fl==0.7.0 tensorly==0.9.0 numpy==2.4.6 scipy==1.17.1
python - << 'END'
import numpy as np
import tensorly
from flexclash.pool.defences import trimmed_mean_f
from scipy.stats import trim_mean

tensorly.set_backend("numpy")
found = {}
for sign in (1.0, -1.0):
    models = [[np.array([sign * value])] for value in range(1, 11)]
    found[sign] = trimmed_mean_f(models, 0.1)[0].item()
    print(f"values {sign:.0f} to {10 * sign:.0f}: {found[sign]:.2f}; SciPy: {trim_mean([m[0].item() for m in models], 0.1):.2f}")
assert found == {1.0: 6.0, -1.0: -5.0}
END
