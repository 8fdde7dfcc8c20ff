#!/usr/bin/env bash
# Subject: scikit-survival
# What: `CoxnetSurvivalAnalysis(normalize=True, fit_baseline_model=True)` has the right coefficients and wrong survival functions: the baseline does not fit them.
# Symptom: Predicted survival probabilities of a pooled model are biased, though its C-index and coefficients are right.
# Concerns: penalised Cox models as baselines for federated survival analysis
# Expected: almost without penalty, survival functions are those of `CoxPHSurvivalAnalysis` with Breslow's ties, as they are without `normalize`.
# Seen: the time that a tenth of 400 patients outlive has a mean survival probability of 0.10 without `normalize`, 0.15 with it.
# Here: Survival curves from sums are Kaplan and Meier's, and are compared with those of pooled rows; Cox models have no baseline.
# Test: tests/methods/test_survival.py::test_curves_are_those_of_lifelines
. "$(dirname "$0")/environment"
install scikit-survival==0.28.0 scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3
python - << 'END'
import numpy as np
from sksurv.linear_model import CoxnetSurvivalAnalysis, CoxPHSurvivalAnalysis
from sksurv.util import Surv

rng = np.random.default_rng(0)
x = rng.normal(size=(400, 2)) * [1.0, 12.0]  # a score, and an age in years
time = rng.exponential(np.exp(-x @ [0.5, 0.04])) * 10
y = Surv.from_arrays(np.ones(400, bool), time)
late = np.quantile(time, 0.9)


def survival(model):
    return float(np.mean([curve(late) for curve in model.predict_survival_function(x)]))


exact = CoxPHSurvivalAnalysis(ties="breslow").fit(x, y)
found = {"exact": survival(exact)}
for normalize in (False, True):
    model = CoxnetSurvivalAnalysis(alphas=[1e-9], normalize=normalize, fit_baseline_model=True, tol=1e-12, max_iter=100_000)
    model.fit(x, y)
    assert np.allclose(model.coef_[:, 0], exact.coef_, rtol=1e-3)
    found[f"normalize={normalize}"] = survival(model)
print({name: round(value, 3) for name, value in found.items()})
assert abs(found["normalize=False"] - found["exact"]) < 1e-3
assert found["normalize=True"] > 1.3 * found["exact"]
END
