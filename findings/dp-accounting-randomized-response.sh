#!/usr/bin/env bash
# Subject: dp-accounting
# What: For a randomised response, `PLDAccountant.compose(event, count)` ignores the count: a hundred replies cost as much as one.
# Symptom: The ε of repeated local reports does not grow with the rounds.
# Concerns: local privacy by randomised response
# Expected: `compose(event, count)` counts the event `count` times, as it does for every other event and in the Rényi accountant.
# Seen: PLD: 1.204 for 1 and for 100 replies; with a call for each 100.2; Rényi 103.0.
# Here: The suite accounts for Gaussian and Laplace releases alone, and many releases are compared with one.
# Test: tests/privacy/test_accounting.py::TestTotal::test_several_gaussians_are_one_with_the_square_root_of_their_number
. "$(dirname "$0")/environment"
install dp-accounting==0.6.0
python - << 'END'
from dp_accounting import NeighboringRelation, RandomizedResponseDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

EVENT, RELATION = RandomizedResponseDpEvent(noise_parameter=0.3, num_buckets=4), NeighboringRelation.REPLACE_SPECIAL


def epsilon(accountant, count):
    return float(accountant(neighboring_relation=RELATION).compose(EVENT, count).get_epsilon(1e-5))


pld = [epsilon(PLDAccountant, count) for count in (1, 2, 100)]
rdp = [epsilon(RdpAccountant, count) for count in (1, 2, 100)]
one_by_one = PLDAccountant(neighboring_relation=RELATION)
for _ in range(100):
    one_by_one.compose(EVENT)
print(f"1, 2, 100 replies: PLD {pld}, Rényi {rdp}; PLD, composed one by one {one_by_one.get_epsilon(1e-5):.3f}")
assert pld[0] == pld[1] == pld[2] and rdp[2] > 50
END
