#!/usr/bin/env bash
# Subject: lifelines
# What: Where labels of rows repeat, as after `pd.concat` of clients' tables, `CoxPHFitter` has the right coefficients and a wrong `concordance_index_`.
# Symptom: The pooled model's C-index is much below that of the same model on the same rows.
# Concerns: pooled survival analysis as a baseline for federated Cox models
# Expected: the index of a table has no role in the documentation; coefficients, likelihood and baseline ignore it.
# Seen: 0.582 instead of 0.680; with strata, an IndexError.
# Here: The C-index is computed from arrays, and compared with a count over all pairs.
# Test: tests/tasks/test_metrics.py::test_c_index_is_the_share_of_comparable_pairs
. "$(dirname "$0")/environment"
install lifelines==0.30.3 pandas==2.3.3 numpy==2.4.6
python - << 'END'
import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from lifelines.utils import concordance_index

rng = np.random.default_rng(0)


def client(n):
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "time": rng.exponential(np.exp(-x)), "event": rng.integers(0, 2, n)})


clients = [client(60), client(80)]
repeated, unique = pd.concat(clients), pd.concat(clients, ignore_index=True)
found, right = (CoxPHFitter().fit(table, "time", "event") for table in (repeated, unique))
exact = concordance_index(unique["time"], -right.predict_partial_hazard(unique), unique["event"])
print("coefficients", found.params_.tolist(), right.params_.tolist())
print(f"C-index: labels repeat {found.concordance_index_:.3f}, labels differ {right.concordance_index_:.3f}")
assert np.allclose(found.params_, right.params_) and np.isclose(found.log_likelihood_, right.log_likelihood_)
assert np.isclose(right.concordance_index_, exact) and exact - found.concordance_index_ > 0.05
END
