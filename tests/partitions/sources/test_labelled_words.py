"""Lists of words with a label for each, as tokens of a pretrained model: from files and hub data to predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

import florilegium as fl
from florilegium.apps.settings.configuration import parse_source
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.device_data import read_device
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.pieces import PADDING, with_labels
from florilegium.tasks.losses import IGNORED
from tests import pretrained

TAGS = ["O", "B-PER", "I-PER"]


def _sentences(n: int, seed: int = 1) -> tuple[list[list[str]], list[list[str]]]:
    """Return sentences in which words 0 to 9 are first names, and the word behind one belongs to it."""
    rng = np.random.default_rng(seed)
    words = [[int(word) for word in rng.integers(40, size=rng.integers(3, 9))] for _ in range(n)]
    tags = [
        ["B-PER" if w < 10 else "I-PER" if k and own[k - 1] < 10 else "O" for k, w in enumerate(own)] for own in words
    ]
    return [[f"w{w}" for w in own] for own in words], tags


def _write(folder: Path, **columns: Any) -> Path:
    folder.mkdir()
    words, tags = _sentences(90)
    table = pa.table({"words": words, "tags": tags, **columns})
    pq.write_table(table, folder / "train.parquet")
    return folder


KEYS: dict[str, Any] = {
    "num_clients": 3, "partitioner": "iid", "participation": 1.0, "rounds": 3, "local_epochs": 3, "batch_size": 8,
    "learning_rate": 0.01, "optimizer": "adam", "label_column": "tags", "evaluate_every": 3, "adapter_kind": "lora",
    "adapter_targets": "query,value",
}  # fmt: skip


def _keys(folder: Path, **more: Any) -> dict[str, Any]:
    found = {**KEYS, "dataset": str(folder), "model": f"transformers:{pretrained.tiny()}", **more}
    return {key.replace("adapter_", "adapter."): value for key, value in found.items()}


def _source(keys: dict[str, Any]) -> dict[str, Any]:
    wanted = ("dataset", "label_column", "cache_dir")
    own = {key.replace("_", "-"): value for key, value in keys.items() if key in wanted}
    return {**own, "tokenizer": str(pretrained.tiny())}


def test_each_words_first_token_has_its_label() -> None:
    """As the tokenizer itself counts words; "wx" is no word of its vocabulary and falls into pieces."""
    reads = AutoTokenizer.from_pretrained(pretrained.tiny())
    sentences, labels = [["w1", "w12-w13", "w2"], ["w3"]], [[1, 2, 3], [4]]
    notes: list[str] = []
    x, y = with_labels(sentences, labels, pretrained.tiny(), 12, "here", notes)
    for row, sentence in enumerate(sentences):
        read = reads(sentence, is_split_into_words=True)
        tokens, owners = read["input_ids"], read.word_ids()
        assert x[row, : len(tokens)].tolist() == tokens
        assert (x[row, len(tokens) :] == PADDING).all()
        expected = [
            labels[row][owner] if owner is not None and owner not in owners[:place] else IGNORED
            for place, owner in enumerate(owners)
        ]
        assert y[row].tolist() == expected + [IGNORED] * (12 - len(tokens))
    assert (y != IGNORED).sum() == 4
    assert not notes
    cut, counted = with_labels(sentences, labels, pretrained.tiny(), 3, "here", notes)
    assert (cut == x[:, :3]).all()
    assert (counted == y[:, :3]).all()
    assert "1 of 2 sentences have more than 3 tokens, and are cut; 1 words do not count" in notes[0]


@pytest.mark.parametrize(
    ("sentences", "labels", "said"),
    [
        ([["w1"], []], [[0], []], "row 1 is no list of words"),
        ([["w1", " "]], [[0, 1]], "row 0 is no list of words, or one of them is empty"),
        ([["w1", "w2"]], [[0]], "row 0 has 2 words and 1 labels"),
    ],
)
def test_what_is_no_sentence_with_labels(sentences: Any, labels: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        with_labels(sentences, labels, pretrained.tiny(), 8, "here", [])


def test_a_run_and_its_predictions(tmp_path: Path) -> None:
    """Better than the most frequent label, and a prediction for each word of a sentence."""
    keys = _keys(_write(tmp_path / "names"))
    result = fl.run(method="fedavg", **keys, runs_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    _, tags = _sentences(90)
    most = np.mean([tag == "O" for own in tags for tag in own])
    assert result.summary["final"]["seen"]["accuracy"] > most
    words, _ = _sentences(5, seed=2)
    found = result.predict({"words": words}, client="0")["classes"]
    assert [len(row.split()) for row in found] == [len(own) for own in words]
    assert {tag for row in found for tag in row.split()} <= {*TAGS}
    pq.write_table(pa.table({"words": words}), tmp_path / "new.parquet")
    assert [*result.predict(tmp_path / "new.parquet", client="0")["classes"]] == [*found]


def test_names_of_classes_in_the_hubs_features(tmp_path: Path) -> None:
    """As ``datasets`` writes sequences of ClassLabels: the order of the names, one of which does not occur."""
    words, tags = _sentences(30)
    names = [*TAGS, "B-LOC"]
    table = pa.table({"tokens": words, "ner_tags": [[names.index(tag) for tag in own] for own in tags]})
    features = {
        "tokens": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"},
        "ner_tags": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"},
    }
    noted = json.dumps({"info": {"features": features}}).encode()
    folder = tmp_path / "hub"
    folder.mkdir()
    pq.write_table(table.replace_schema_metadata({b"huggingface": noted}), folder / "train.parquet")
    spec = dataset_of(parse_source(_source(_keys(folder, label_column="ner_tags", cache_dir=str(tmp_path / "cache")))))
    assert list(spec.labels) == names
    y = np.load(Path(spec.folder) / "train-y.npy")
    assert sorted(y[y != IGNORED].tolist()) == sorted(names.index(tag) for own in tags for tag in own)


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        ({}, {"model": "char-lstm-steps"}, "labels of words, which only a tokenizer reads"),
        ({"tags": ["O", "B-PER"] * 45}, {}, "lists of words need a list with a label for each word"),
        ({"words": ["w1 w2"] * 90}, {}, "lists of words need a list with a label for each word"),
        ({"tags": [["O"]] * 90}, {}, "1 label of words; two are needed"),
        ({"more": [["w1"]] * 90}, {}, "lists of words"),
    ],
)
def test_what_does_not_go_together(change: dict[str, Any], keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, DataError), match=said):
        fl.run(method="fedavg", **_keys(_write(tmp_path / "names", **change), cache_dir=str(tmp_path), **keys))


def test_devices_give_parquet(tmp_path: Path) -> None:
    schema = f'label = "tags"\nlabels = {TAGS}\nword-labels = true\n\n[texts]\ncolumn = "words"\nlength = 9\n'
    (tmp_path / "schema.toml").write_text(schema)
    spec = dataset_of(parse_source(_source({"dataset": str(tmp_path)})))
    words, tags = _sentences(40)
    pq.write_table(pa.table({"words": words, "tags": tags}), tmp_path / "own.parquet")
    data = read_device(tmp_path / "own.parquet", spec)
    counted = sum(int((part.y != IGNORED).sum()) for part in (data.train, data.test))
    assert counted == sum(len(own) for own in tags)
    pd.DataFrame({"words": ["w1 w2"], "tags": ["O O"]}).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(DataError, match="do not fit into a CSV file; give parquet"):
        read_device(tmp_path / "own.csv", spec)
