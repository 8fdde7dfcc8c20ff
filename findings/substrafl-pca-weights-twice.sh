#!/usr/bin/env bash
# Subject: substrafl
# What: Federated PCA weights clients by their sizes twice: their covariances are sums over samples, and the strategy averages them with the shares of samples.
# Symptom: Components are those of the largest clients; a principal component of the pooled data that small clients determine is missing.
# Concerns: PCA across centres of unequal sizes with SubstraFL
# Expected: the components of the pooled samples, as for centres of equal sizes.
# Seen: centres with 300 and 100 samples: the first component is the axis with the smaller variance of the pooled samples, 2.9 instead of 3.9; with 300 and 300 it is right.
# Here: The suite has no principal components.
. "$(dirname "$0")/environment"
install substrafl==1.0.0 torch==2.15.0 numpy==2.4.6 setuptools
python - << 'END'
import logging

import numpy as np
import torch
from substrafl.algorithms.pytorch import TorchFedPCAAlgo
from substrafl.strategies import FedPCA

logging.disable(logging.WARNING)


class Rows(torch.utils.data.Dataset):
    def __init__(self, data_from_opener, is_inference):
        self.x = torch.as_tensor(data_from_opener, dtype=torch.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], 0


class Components(TorchFedPCAAlgo):
    def __init__(self):
        super().__init__(dataset=Rows, in_features=2, out_features=1)


def first(*centres):
    algos, state = [Components() for _ in centres], None
    strategy = FedPCA(algo=algos[0])
    for number in range(30):
        shared = [a.train(data_from_opener=x, shared_state=state, _skip=True) for a, x in zip(algos, centres)]
        average = strategy.avg_shared_states if number == 0 else strategy.avg_shared_states_with_qr
        state = average(shared_states=shared, _skip=True)
    return np.abs(state.avg_parameters_update[0][0])


def centre(count, *variances):
    return rng.normal(size=(count, 2)) * np.sqrt(variances)


rng = np.random.default_rng(0)
for sizes in ((300, 300), (300, 100)):
    centres = centre(sizes[0], 3, 1), centre(sizes[1], 1, 14)
    covariance = np.cov(np.concatenate(centres).T)
    expected, found = np.abs(np.linalg.eigh(covariance)[1][:, -1]), first(*centres)
    print(f"{sizes}: first component {found.round(2)}, of the pooled rows {expected.round(2)}, variances {covariance.diagonal().round(2)}")
    assert (found @ expected > 0.99) == (sizes == (300, 300))
END
