#!/usr/bin/env bash
# Subject: flwr
# What: `count_bytes()` raises an IndexError for a record with an empty list, which records of metrics and configurations may hold. Metric records count it as 0.
# Symptom: An app that counts its traffic, or chooses by size, fails in the first round in which a list happens to be empty.
# Concerns: Flower apps that measure or bound what they send
# Expected: an empty list takes no bytes: it can be put into the record, sent and read.
# Seen: ConfigRecord({"failed": []}): IndexError: list index out of range; MetricRecord({"failed": []}): 6, the bytes of its name.
# Here: Bytes of records are counted by the suite itself.
# Test: tests/clients/core/test_joining.py::test_records_come_apart_as_they_were
. "$(dirname "$0")/environment"
install flwr==1.42.0
python - << 'END'
from flwr.app import ConfigRecord, MetricRecord, RecordDict

record = ConfigRecord({"failed": []})
assert RecordDict({"outcome": record})["outcome"]["failed"] == []
try:
    print(record.count_bytes())
    raise SystemExit("an empty list is counted now")
except IndexError as error:
    print(f"ConfigRecord: IndexError: {error}")
print("MetricRecord:", MetricRecord({"failed": []}).count_bytes())
assert MetricRecord({"failed": []}).count_bytes() == len("failed")
END
