#!/usr/bin/env bash
# Subject: datasets
# What: `Dataset.from_list` and `from_generator` keep the columns of the first row alone, and drop those that only later rows have. The same rows read from a JSON file keep them.
# Symptom: A client whose first record lacks an optional field has no such column, though most of its records do.
# Concerns: clients' records with optional fields
# Expected: a row that lacks a field of the first row gets `None` for it, so one expects the same in the other order.
# Seen: from_list and from_generator: column a; JSON: a and b.
# Here: All files of a dataset need the same columns; one that lacks a column is an error that names it.
# Test: tests/partitions/sources/test_folders.py::TestRefused::test_files
. "$(dirname "$0")/environment"
install datasets==4.8.5
export HF_HUB_OFFLINE=1 HF_HOME=$PWD/cache
python - << 'END'
import json
from pathlib import Path

from datasets import Dataset, load_dataset

rows = [{"a": 1}, {"a": 2, "b": 3}]
Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
found = {
    "from_list": Dataset.from_list(rows),
    "from_list, other order": Dataset.from_list(rows[::-1]),
    "from_generator": Dataset.from_generator(lambda: iter(rows)),
    "JSON file": load_dataset("json", data_files="rows.jsonl", split="train"),
}
columns = {name: sorted(made.column_names) for name, made in found.items()}
print(columns)
assert columns["from_list"] == columns["from_generator"] == ["a"]
assert columns["from_list, other order"] == columns["JSON file"] == ["a", "b"]
END
