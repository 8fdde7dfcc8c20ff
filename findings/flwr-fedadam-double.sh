#!/usr/bin/env bash
# Subject: flwr
# What: With NumPy 2, `FedAdam` returns a float64 model where all clients sent float32, as its bias correction is a NumPy scalar. FedYogi and FedAdagrad keep float32.
# Symptom: From the second round on the server sends twice as many bytes, and the saved model is twice as large; clients' networks turn it back, and nobody notices.
# Concerns: Flower apps with `FedAdam`, their traffic, and comparisons of bytes between methods
# Expected: an aggregated model has the types of the clients' models, as with the other strategies.
# Seen: 400,000 bytes from each client and in the initial model; aggregated 800,000 by FedAdam, 400,000 by FedAvg, FedYogi, FedAdagrad and FedAvgM.
# Here: The suite has its own server step, whose arrays keep the types of the model.
# Test: tests/strategies/core/test_rounds.py::TestLearning::test_server_adam_goes_along_signs_at_first
. "$(dirname "$0")/environment"
install flwr==1.42.0 numpy==2.4.6
python - << 'END'
import logging

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies

logging.disable(logging.INFO)
rng = np.random.default_rng(0)
RULES = {"FedAvg": "float32", "FedAvgM": "float32", "FedYogi": "float32", "FedAdagrad": "float32", "FedAdam": "float64"}


def model():
    return ArrayRecord({"weight": Array(rng.normal(size=(100, 1000)).astype(np.float32))})


def reply(number):
    content = RecordDict({"arrays": model(), "metrics": MetricRecord({"num-examples": 10})})
    return Message(content, metadata=Metadata(1, "id", number, 1, "asked", "", 0.0, 60.0, "train"))


for name, dtype in RULES.items():
    rule = getattr(strategies, name)()
    rule._construct_messages = lambda *_: []  # no clients are connected: their replies are below
    initial = model()

    class Grid:
        def get_node_ids(self):
            return [1, 2, 3]

    list(rule.configure_train(1, initial, ConfigRecord(), Grid()))
    found, _ = rule.aggregate_train(1, [reply(number) for number in (1, 2, 3)])
    array = found["weight"].numpy()
    print(f"{name}: {array.dtype}, {array.nbytes:,} bytes; a client's {initial['weight'].numpy().nbytes:,}")
    assert array.dtype == dtype and initial["weight"].numpy().dtype == "float32"
END
