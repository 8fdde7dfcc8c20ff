#!/usr/bin/env bash
# Subject: xgboost-cpu
# What: Training that goes on from a client's trees with another `base_score` changes what those trees predict: the new value replaces that of the model.
# Symptom: In cyclic federated boosting, accuracy jumps when a client with a `base_score` of its own takes its turn.
# Concerns: federated XGBoost that passes a model from client to client
# Expected: `xgb_model` is documented to continue from the model; other arguments are those of the new rounds.
# Seen: predictions of the first five trees move by up to 0.66.
# Here: The suite has no trees.
. "$(dirname "$0")/environment"
install numpy==2.4.6 scipy==1.17.1
install --no-deps xgboost-cpu==3.2.0
python - << 'END'
import json

import numpy as np
import xgboost

rng = np.random.default_rng(0)
x = rng.normal(size=(800, 4))
y = x[:, 0] + 0.5 * rng.normal(size=800) > 0.7
data = xgboost.DMatrix(x, y)
keys = {"objective": "binary:logistic", "nthread": 1, "max_depth": 3}
first = xgboost.train(keys, data, 5)
for base in ({}, {"base_score": 0.9}):
    second = xgboost.train(keys | base, data, 3, xgb_model=first)
    score = json.loads(second.save_config())["learner"]["learner_model_param"]["base_score"]
    moved = float(np.abs(second.predict(data, iteration_range=(0, 5)) - first.predict(data)).max())
    print(f"{base or 'no base_score'}: the model's base score is {score}; the first trees' predictions move by {moved:.2f}")
    assert (moved > 0.3) == bool(base)
END
