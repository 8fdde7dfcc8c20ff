#!/usr/bin/env bash
# Subject: datasets
# What: `skip(n)` on a shuffled stream leaves out one row instead of n, so that `take(n)` and `skip(n)` share all rows but one.
# Symptom: Validation accuracy is that of training rows: a split of a streamed dataset by `take` and `skip` has no rows of its own.
# Concerns: streamed datasets that are split for validation or among clients
# Expected: the documentation of `skip`: a new dataset that skips the first n elements, which are those of `take`; without `shuffle` it does.
# Seen: 100 rows: `skip(20)` has 80 without `shuffle`, 99 with it, of which 19 are among the 20 of `take(20)`.
# Here: Held-out rows are drawn by index and are never trained on.
# Test: tests/partitions/test_clientdata.py::TestHoldingBack::test_every_class_has_its_share
. "$(dirname "$0")/environment"
install datasets==4.8.5
export HF_HUB_OFFLINE=1 HF_HOME=$PWD/cache
python - << 'END'
from datasets import Dataset

for buffer in (0, 10, 1000):
    rows = Dataset.from_dict({"row": range(100)}).to_iterable_dataset()
    if buffer:
        rows = rows.shuffle(seed=1, buffer_size=buffer)
    validation, training = ({one["row"] for one in part} for part in (rows.take(20), rows.skip(20)))
    print(f"shuffle buffer {buffer}: take(20) {len(validation)}, skip(20) {len(training)}, both {len(validation & training)}")
    assert len(validation) == 20
    assert (len(training), len(validation & training)) == ((99, 19) if buffer else (80, 0))
END
