#!/usr/bin/env bash
# Subject: diffprivlib
# What: `PCA.fit` subtracts the mean from the caller's array, although `copy=True` is the default, so that a following `transform` subtracts it twice.
# Symptom: After a private PCA, other models fit data that were moved out of their bounds, and the projections' mean is far from 0.
# Concerns: private statistics of clients' tables, with several models fitted to the same array
# Expected: the array stays as it was, as with scikit-learn's PCA, and the projections of what was fitted have mean 0.
# Seen: the array's first row becomes that minus the mean; mean of the first projection -5.50 with fit_transform, 0.00 of a copy.
# Here: The suite has no private principal components.
. "$(dirname "$0")/environment"
install numpy==2.4.6 scikit-learn==1.5.2 scipy==1.17.1 diffprivlib==0.6.6
python - << 'END'
import numpy as np
from diffprivlib.models import PCA
from sklearn.datasets import load_iris

flowers = load_iris().data
bounds = flowers.min(axis=0), flowers.max(axis=0)


def components():
    # A budget so large that the noise is far below what is shown.
    return PCA(2, epsilon=1e9, bounds=bounds, data_norm=12, copy=True)


given = flowers.copy()
projected = components().fit_transform(given)
apart = components().fit(flowers.copy()).transform(flowers)
print("first row before", flowers[0], "after", given[0].round(2))
print(f"mean of the first projection: {projected[:, 0].mean():.2f}, of a copy {apart[:, 0].mean():.2f}")
assert np.allclose(given, flowers - flowers.mean(axis=0), atol=1e-4)
assert abs(projected[:, 0].mean() + 5.50) < 0.01 and abs(apart[:, 0].mean()) < 1e-3
END
