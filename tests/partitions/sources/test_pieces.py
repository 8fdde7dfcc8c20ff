"""Texts as tokens of a pretrained model, compared with its tokenizer used by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.model_folders import find_folder, text_facts
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.pieces import PADDING, other_vocabulary, tokens_of
from tests.pretrained import keys, tiny
from tests.support import settings

TEXTS = ["w0 w1", "w5", "w1 w2 w3 w4"]
WANTED = [[2, 4, 5, 3], [2, 9, 3], [2, 5, 6, 7, 8, 3]]  # [CLS] is 2, [SEP] 3, w0 4


def test_tokens_stand_in_front_of_padding() -> None:
    notes: list[str] = []
    found = tokens_of(TEXTS, tiny(), 8, "it", notes)
    assert [[*row[row != PADDING]] for row in found] == WANTED
    assert found.dtype == np.int32
    assert not notes


def test_long_texts_are_cut_and_counted() -> None:
    notes: list[str] = []
    found = tokens_of(TEXTS, tiny(), 4, "it", notes)
    assert found.tolist() == [[2, 4, 5, 3], [2, 9, 3, PADDING], [2, 5, 6, 3]]
    assert notes == ["it: 1 of 3 texts have more than 4 tokens, and are cut"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_named(text: str) -> None:
    with pytest.raises(DataError, match="row 1 is an empty text, and so are 1 others"):
        tokens_of(["w1", text, "w2", text], tiny(), 8, "it", [])


def test_the_least_stated_limit_counts(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    assert text_facts(folder, "model").limit == 64  # of 128 position embeddings
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    assert text_facts(folder, "model").limit == 16


def test_more_tokens_than_the_model_knows_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 500}))
    with pytest.raises(ConfigurationError, match="has 1004 tokens, and the model in the same folder knows 500"):
        tokens_of(TEXTS, folder, 8, "it", [])


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    assert not other_vocabulary(shutil.copytree(tiny(), tmp_path / "same"), tiny())
    folder = shutil.copytree(tiny(), tmp_path / "base")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"w7"', '"v7"'))
    (problem,) = other_vocabulary(folder, tiny())
    assert "are not those that" in problem
    with pytest.raises(ConfigurationError, match="are not those that"):
        settings(**keys(tokenizer=str(folder)))


def test_a_model_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLORILEGIUM_MODELS", str(tmp_path))
    shutil.copytree(tiny(), tmp_path / "mine")
    assert find_folder("mine", "model") == tmp_path / "mine"
    with pytest.raises(ConfigurationError, match=f"there is no model 'other' in {tmp_path}"):
        find_folder("other", "model")


class TestDatasets:
    def test_a_folder_of_tables(self, tmp_path: Path) -> None:
        (tmp_path / "train.csv").write_text("text,label\n" + "w0 w1,a\nw5,b\nw1 w2 w3 w4,a\n" * 3)
        given = settings(**keys(dataset=str(tmp_path), text_length=5))
        found = load_dataset(given).train.x
        assert found[:3].tolist() == [[2, 4, 5, 3, -1], [2, 9, 3, -1, -1], [2, 5, 6, 7, 3]]

    def test_a_described_dataset_of_other_inputs_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="tokenizer: 'digits' has inputs of kind 'image', not texts"):
            settings(**keys(dataset="digits"))

    def test_without_a_tokenizer_the_model_reads_no_texts(self) -> None:
        with pytest.raises(ConfigurationError, match="does not take the inputs"):
            settings(**keys(tokenizer=""))

    def test_numbers_as_labels(self, tmp_path: Path) -> None:
        rows = "".join(f"w{row},{row / 7}\n" for row in range(200))
        (tmp_path / "train.csv").write_text("text,label\n" + rows)
        given = settings(**keys(dataset=str(tmp_path)))
        assert load_dataset(given).spec.learned.outputs == (1,)  # regression, as for any inputs


def test_a_length_without_room_for_a_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="adds 2 tokens to each text, which leaves none of 2"):
        tokens_of(TEXTS, tiny(), 2, "it", [])
