#!/usr/bin/env bash
# Subject: dp-accounting
# What: For replaced examples, the PLD accountant doubles the sensitivity of a Gaussian release, the Rényi accountant does not: the same event under the same relation costs 10.0 or 4.7.
# Symptom: ε halves when the accountant is changed.
# Concerns: budgets for neighbours that replace an example or a client
# Expected: `NeighboringRelation.REPLACE_ONE` is documented once for both; the Rényi accountant is otherwise an upper bound.
# Seen: Gaussian of noise multiplier 1, δ = 1e-5: 9.997 and 4.729; for a sensitivity of 2, the exact value is 9.997.
# Here: Statements are for added or removed clients or examples, and say so; all accountants are compared for this relation.
# Test: tests/privacy/test_other_accountant.py::test_client_level_epsilon
. "$(dirname "$0")/environment"
install dp-accounting==0.6.0
python - << 'END'
import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm


def exact(sensitivity, delta=1e-5):
    """Return ε of a Gaussian with deviation 1 (Balle & Wang 2018)."""
    s = sensitivity
    return brentq(lambda e: norm.cdf(s / 2 - e / s) - np.exp(e) * norm.cdf(-s / 2 - e / s) - delta, 0.01, 50)


def epsilon(accountant, relation):
    return accountant(neighboring_relation=relation).compose(GaussianDpEvent(1.0)).get_epsilon(1e-5)


found = {}
for relation in (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE):
    for accountant in (RdpAccountant, PLDAccountant):
        found[relation.name, accountant.__name__] = float(epsilon(accountant, relation))
        print(f"{relation.name} {accountant.__name__}: {found[relation.name, accountant.__name__]:.3f}")
print(f"exact, sensitivity 1: {exact(1):.3f}, sensitivity 2: {exact(2):.3f}")
assert abs(found["REPLACE_ONE", "PLDAccountant"] - exact(2)) < 0.01
assert found["REPLACE_ONE", "RdpAccountant"] == found["ADD_OR_REMOVE_ONE", "RdpAccountant"] < 5
END
