#!/usr/bin/env bash
# Subject: flexclash
# What: `bulyan` selects the same client several times: it strikes chosen ones out of rows that it has sorted, until all scores are infinite.
# Symptom: The result is a mean over few clients, some of them counted up to four times; it depends on the order of the clients.
# Concerns: robust aggregation with FLEXible and FLEXclash, and comparisons with it
# Expected: Krum applied again and again to the clients that are left (El Mhamdi et al. 2018, section 4): θ different clients, the same in any order.
# Seen: eleven models, f = 2: in three orders, four, six and five different clients among the seven that are selected, and three different results.
# Here: Bulyan selects n − 2f different clients, those of Krum repeated on what is left.
# Test: tests/strategies/robust/test_rules.py::test_bulyan_by_its_own_steps
. "$(dirname "$0")/environment"
install flexclash==0.0.3 flexible-fl==0.7.0 tensorly==0.9.0 numpy==2.4.6
python - << 'END'
import numpy as np
from flex.model import FlexModel
from flexclash.pool import defences

selected = []
mean = defences.trimmed_mean_f
defences.trimmed_mean_f = lambda models, share: selected.append([model[0].item() for model in models]) or mean(models, share)
results = []
for seed in range(3):
    values = np.random.default_rng(seed).permutation(np.arange(11.0) ** 1.5)
    server = FlexModel()
    server["weights"] = [[np.array([value])] for value in values]
    defences.bulyan(server, None, f=2, m=2)
    results.append(round(server["aggregated_weights"][0].item(), 2))
    print(f"selected: {sorted(round(value, 1) for value in selected[-1])}, result {results[-1]}")
assert [len(set(models)) for models in selected] == [4, 6, 5] and len(set(results)) == 3
END
