#!/usr/bin/env bash
# Subject: fluke-fl
# What: The pathological split cuts training and test rows into shards separately, so that clients are tested on classes they never train on, and on other proportions.
# Symptom: Personalised accuracy has a ceiling below 1 that differs between clients.
# Concerns: experiments with fluke, and comparisons with them
# Expected: the split by label quantity and the Dirichlet split of the same class give a client's test rows its training classes.
# Seen: with five clients and two shards each, two clients have 11 and 12 of 200 test rows in classes that they lack.
# Here: Test rows follow the class mix of a client's training rows.
# Test: tests/partitions/test_federation.py::TestTestRows::test_follow_the_clients_own_class_mix
. "$(dirname "$0")/environment"
install fluke-fl==0.8.1 torch==2.15.0
python - << 'END'
import numpy as np
import torch
from fluke.data import DataSplitter

rng = np.random.default_rng(0)
y, test = rng.integers(0, 10, 2000), rng.integers(0, 10, 1000)
arguments = torch.zeros(2000, 1), torch.from_numpy(y), torch.zeros(1000, 1), torch.from_numpy(test), 5
for split in (DataSplitter.label_quantity_skew, DataSplitter.label_pathological_skew):
    np.random.seed(1)
    unknown = [int((~np.isin(test[b], y[a])).sum()) for a, b in zip(*split(*arguments), strict=True)]
    print(f"{split.__name__}: test rows of classes that the client does not train on: {unknown}")
    assert any(unknown) == (split is DataSplitter.label_pathological_skew)
END
