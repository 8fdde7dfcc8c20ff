#!/usr/bin/env bash
# Subject: statsmodels
# What: A GLM with `freq_weights` has the coefficients and likelihood of the repeated rows, but a larger `pseudo_rsquared()`: by default it divides by the number of distinct rows.
# Symptom: A model looks better the more its records are grouped before they leave a hospital.
# Concerns: regressions from clients' counts, and figures pooled from them
# Expected: frequency weights are documented as repeated rows; McFadden's figure is right.
# Seen: 155 records, 60 of them distinct: 0.21 from the records, 0.45 from the counts.
# Here: Generalised linear models from sums report likelihood and AIC, no pseudo R²; fits with weights are compared with pooled ones.
# Test: tests/methods/test_glm.py::TestPooled::test_weights
. "$(dirname "$0")/environment"
install statsmodels==0.15.0 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3
python - << 'END'
import numpy as np
import statsmodels.api as sm

rng = np.random.default_rng(0)
counts = rng.integers(1, 5, 60)
x = sm.add_constant(rng.normal(size=(60, 2)))
y = rng.poisson(np.exp(x @ [0.3, 0.5, -0.2]))
counted = sm.GLM(y, x, family=sm.families.Poisson(), freq_weights=counts).fit()
rows = np.repeat(np.arange(60), counts)
single = sm.GLM(y[rows], x[rows], family=sm.families.Poisson()).fit()
for name in ("params", "bse", "llf", "aic", "deviance", "llnull"):
    assert np.allclose(getattr(counted, name), getattr(single, name)), name
found = {kind: (single.pseudo_rsquared(kind), counted.pseudo_rsquared(kind)) for kind in ("cs", "mcf")}
print(f"{counts.sum()} records; from the records and from the counts:", found)
assert single.pseudo_rsquared() == found["cs"][0]
assert np.isclose(*found["mcf"])
assert found["cs"][1] > 1.5 * found["cs"][0]
END
