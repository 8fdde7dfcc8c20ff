"""Texts in words: pretrained vectors from a file, users with enough tests, the Sent140 recipe on made data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from florilegium.apps.assembly.node_config import own_data, parse_node
from florilegium.apps.cli.app import cli
from florilegium.apps.runs.experiment import read_recipe
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import CPU, simulated
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.device_data import read_device
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.words import vocabulary, words_of
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.grid import run_app
from tests.support import config, settings

WORDS = ["good", "bad", "day", ".", "!"]
SIZE = 300


def _vectors() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(len(WORDS), SIZE)).round(3).astype(np.float32)


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    """Return a file of five words in GloVe's text format."""
    lines = [" ".join([word, *map(str, row)]) for word, row in zip(WORDS, _vectors(), strict=True)]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "glove.txt"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with users of 40, 45, 50, 5 and 12 messages: a good day, or a bad one."""
    users, texts, labels = [], [], []
    for user, count in enumerate((40, 45, 50, 5, 12)):
        for i in range(count):
            users.append(f"user{user}")
            texts.append(("What a Good day!" if i % 2 else "bad, bad day.") + " unheard-of" * (i % 3))
            labels.append(4 * (i % 2))
    (tmp_path / "data" / "sent140").mkdir(parents=True)
    table = pyarrow.table({"text": texts, "user": users, "sentiment": labels})
    pyarrow.parquet.write_table(table, tmp_path / "data" / "sent140" / "train.parquet")
    return tmp_path / "data"


def _keys(tmp_path: Path, glove: Path, data: Path) -> dict[str, Value]:
    folders = {"data-dir": str(data), "cache-dir": str(tmp_path / "cache"), "runs-dir": str(tmp_path)}
    return {**read_recipe("ppfe-sent140"), **folders, "embeddings": str(glove), "num-clients": 3}


class TestVocabulary:
    def test_words_are_lower_case_and_marks_are_words(self) -> None:
        assert words_of("What a 'GOOD' day!! it's #great") == [
            "what", "a", "good", "day", "!", "!", "it", "'s", "great",
        ]  # fmt: skip
        assert words_of("I don't, can’t. nt") == ["i", "do", "n't", ",", "ca", "n't", ".", "nt"]

    def test_a_text_becomes_its_last_words_and_they_their_vectors(self, glove: Path, tmp_path: Path) -> None:
        words = vocabulary(str(glove), str(tmp_path / "cache"), SIZE)
        assert words.encode("A good day!", 6).tolist() == [0, 0, 0, 1, 3, 5]
        assert words.encode("bad good bad day .", 2).tolist() == [3, 4]
        np.testing.assert_array_equal(words.vectors[1:], _vectors())
        assert not words.vectors[0].any()

    def test_a_changed_file_is_read_anew(self, glove: Path, tmp_path: Path) -> None:
        first = vocabulary(str(glove), str(tmp_path / "cache"), SIZE)
        glove.write_text(glove.read_text().splitlines()[1] + "\n")
        vocabulary.cache_clear()
        second = vocabulary(str(glove), str(tmp_path / "cache"), SIZE)
        assert first.name != second.name
        np.testing.assert_array_equal(second.vectors[1], _vectors()[1])

    def test_mistakes(self, glove: Path, tmp_path: Path) -> None:
        cache = str(tmp_path / "cache")
        with pytest.raises(ConfigurationError, match="needs a file of word vectors of 300 numbers"):
            vocabulary("", cache, SIZE)
        with pytest.raises(DataError, match="there is no file"):
            vocabulary(str(tmp_path / "nothing.txt"), cache, SIZE)
        for content, line in (("good 1 2 3\n", 1), (glove.read_text() + "day 0.1 x\n", 6), ("", None)):
            wrong = tmp_path / f"wrong{line}.txt"
            wrong.write_text(content)
            with pytest.raises(DataError, match="is empty" if line is None else f"line {line} of .* 300 numbers"):
                vocabulary(str(wrong), cache, SIZE)


class TestFederation:
    def test_users_with_few_tests_are_left_out(self, glove: Path, data: Path, tmp_path: Path) -> None:
        keys = _keys(tmp_path, glove, data)
        federation, _ = federate(settings(**keys))
        assert sorted(federation.names) == ["user0", "user1", "user2"]  # a fifth of 40 is 8
        assert sorted(federate(settings(**{**keys, "min-test-examples": 2, "num-clients": 4}))[0].names)[-1] == "user4"
        with pytest.raises(DataError, match="no client of 'sent140_words' has 11 test examples; the most are 10"):
            federate(settings(**{**keys, "min-test-examples": 11}))
        cut = {**keys, "samples-per-client": 50, "min-test-examples": 10, "num-clients": 1}
        assert list(federate(settings(**cut))[0].names) == ["user2"]
        with pytest.raises(DataError, match="the most are 4"):  # a fifth of the 20 that are left
            federate(settings(**{**cut, "samples-per-client": 20}))
        with pytest.raises(ConfigurationError, match="min-test-examples: only partitioner = 'natural'"):
            federate(settings(**{**keys, "partitioner": "iid"}))

    def test_inputs_are_vectors(self, glove: Path, data: Path, tmp_path: Path) -> None:
        federation, dataset = federate(settings(**_keys(tmp_path, glove, data)))
        examples = simulated(federation, dataset, 0).train
        assert examples.x.shape == (len(examples), 25, SIZE)
        rows = examples.x[examples.y == 1]
        day = torch.from_numpy(_vectors()[2])
        assert ((rows == day).all(dim=2).sum(dim=1) == 1).all()  # each message has one day

    def test_vectors_that_know_no_word_are_refused(self, glove: Path, data: Path, tmp_path: Path) -> None:
        glove.write_text(" ".join(["unheard", *["0.5"] * SIZE]).replace("unheard", "xyzzy") + "\n")
        with pytest.raises(DataError, match="not one word of column 'text' is in the file of embeddings"):
            federate(settings(**_keys(tmp_path, glove, data)))

    def test_a_device_may_have_an_empty_test_part(self, glove: Path, data: Path, tmp_path: Path) -> None:
        table = pyarrow.parquet.read_table(data / "sent140" / "train.parquet")
        pyarrow.parquet.write_table(table.slice(0, 0), data / "sent140" / "test.parquet")
        words = vocabulary(str(glove), str(tmp_path / "cache"), SIZE)
        assert read_device(data / "sent140", find_spec("sent140_words"), words=words).test.x.shape == (0, 25, SIZE)

    def test_a_device_reads_the_same(self, glove: Path, data: Path, tmp_path: Path) -> None:
        spec, words = find_spec("sent140_words"), vocabulary(str(glove), str(tmp_path / "cache"), SIZE)
        found = read_device(data / "sent140", spec, words=words)
        assert found.train.x.shape[1:] == (25, SIZE)
        assert len(found.train) + len(found.test) == 152

    def test_a_device_has_its_own_copy_of_the_vectors(self, glove: Path, data: Path, tmp_path: Path) -> None:
        keys = {"data-path": str(data / "sent140"), "client-id": "a"}
        elsewhere = {
            "embeddings": "/where/the/server/has/them.txt",
            "cache_dir": str(tmp_path / "cache"),
            "duplicates": "warn",
        }
        found = own_data(parse_node({**keys, "embeddings": str(glove)}), find_spec("sent140_words"), CPU, **elsewhere)
        assert found.train.x.shape[1:] == (25, SIZE)
        assert len(found.train) + len(found.test) == 152
        with pytest.raises(DataError, match="there is no file /where/the/server/has"):
            own_data(parse_node(keys), find_spec("sent140_words"), CPU, **elsewhere)
        with pytest.raises(DataError, match=r"--node-config: embeddings: .* is a relative path"):
            parse_node({**keys, "embeddings": "glove.txt"})


@pytest.mark.long
def test_the_recipe_runs_on_made_data(glove: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # `predict` keeps the vectors in the default cache folder
    keys = _keys(tmp_path, glove, data)
    stages: dict[str, Value] = {"rounds": 4, "ppfe.stage-rounds": "1,1,1,1", "run-name": "sent", "participation": 1.0}
    run_app(config(**{**keys, **stages}), 2)
    assert read_metrics(tmp_path / "sent")[-1]["seen"]["accuracy"] > 0.9  # good and bad are told apart by one word
    runner, model = CliRunner(), str(tmp_path / "model")
    made = runner.invoke(cli, ["export", "sent", "--client", "0", "--output", model, "--runs-dir", str(tmp_path)])
    assert made.exit_code == 0, made.output
    inputs = str(data / "sent140" / "train.parquet")
    said = runner.invoke(cli, ["predict", model, inputs, "--embeddings", str(glove)])
    assert len(said.output.splitlines()) == 152 + 1
    x = read_device(data / "sent140", find_spec("sent140_words"), words=vocabulary(
        str(glove), str(tmp_path / "cache"), SIZE)).test.x.double().numpy()  # fmt: skip
    np.save(tmp_path / "x.npy", x)  # held back by a hash of each row, so that equal rows stay together
    assert len(runner.invoke(cli, ["predict", model, str(tmp_path / "x.npy")]).output.splitlines()) == len(x) + 1
    assert "needs a file of word vectors" in str(runner.invoke(cli, ["predict", model, inputs]).exception)
