#!/usr/bin/env bash
# Subject: flexible-fl
# What: With a whole number as `labels_per_node`, some nodes are assigned the same label twice, and have fewer labels than asked for.
# Symptom: Clients differ in how many classes they have, and others in how much of a class.
# Concerns: pathological splits with FLEXible, and comparisons with published ones
# Expected: every node has as many labels as the number says, as with a range `(3, 3)`.
# Seen: ten seeds of 20 nodes with 3 of 10 labels each: 11 of the 200 nodes have 2 labels. With the range (3, 3) none.
# Here: Each client of a split by classes has as many of them as it was asked for.
# Test: tests/partitions/partitioners/test_classes.py::TestClassesOfAClient::test_every_client_has_exactly_s_classes
. "$(dirname "$0")/environment"
install flexible-fl==0.7.0 numpy==2.4.6
python - << 'END'
import numpy as np
from flex.data import Dataset, FedDataDistribution, FedDatasetConfig

labels = np.repeat(np.arange(10), 1000)
data = Dataset.from_array(np.zeros((len(labels), 1)), labels)
found = []
for asked in (3, (3, 3)):
    counts = []
    for seed in range(10):
        config = FedDatasetConfig(seed=seed, n_nodes=20, labels_per_node=asked, replacement=False)
        nodes = FedDataDistribution.from_config(data, config)
        counts += [len(np.unique(node.y_data.to_numpy())) for node in nodes.values()]
    found.append({label: counts.count(label) for label in sorted({*counts})})
    print(f"labels_per_node={asked}: nodes by their number of labels: {found[-1]}")
assert found == [{2: 11, 3: 189}, {3: 200}]
END
