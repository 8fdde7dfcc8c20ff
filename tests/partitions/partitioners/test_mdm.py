"""Clients whose histograms follow a law: dealing rows, laws by name and from files, features that are counted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.dirichlet_multinomial import Mixture
from florilegium.partitions.features import find_feature, parse_edges
from florilegium.partitions.federation import federate
from florilegium.partitions.mdm_params import NAMED, Law, fingerprint, read_law
from florilegium.partitions.partitioners.mdm import deal
from florilegium.partitions.sources.tables import ADULT, TableSchema, encode_table
from tests.support import settings

NEEDS = {"partitioner": "mdm", "dataset": "digits", "num_clients": 8, "samples_per_client": 20}


class TestDealing:
    def test_histograms_are_met_and_no_row_is_dealt_twice(self) -> None:
        rng = np.random.default_rng(1)
        values = rng.integers(4, size=400)
        histograms = rng.integers(0, 8, size=(10, 4))
        parts = deal(values, histograms, rng)
        np.testing.assert_array_equal([np.bincount(values[part], minlength=4) for part in parts], histograms)
        rows = np.concatenate(parts)
        assert len(set(rows.tolist())) == len(rows)

    @given(
        st.lists(st.integers(0, 2), min_size=10, max_size=40),
        st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=5),
    )
    def test_sizes_are_kept_while_rows_last(self, labels: list[int], wanted: list[list[int]]) -> None:
        values, histograms = np.array(labels), np.array(wanted)
        if histograms.sum() > len(values):
            with pytest.raises(DataError, match=f"{histograms.sum()} examples together, but there are {len(values)}"):
                deal(values, histograms, np.random.default_rng(1))
            return
        parts = deal(values, histograms, np.random.default_rng(1))
        assert [len(part) for part in parts] == histograms.sum(axis=1).tolist()
        rows = np.concatenate(parts)
        assert len(set(rows.tolist())) == len(rows)

    def test_what_runs_out_is_replaced_by_what_the_client_has_besides(self, caplog: pytest.LogCaptureFixture) -> None:
        values = np.repeat([0, 1, 2], [4, 30, 30])
        histograms = np.array([[3, 0, 0], [4, 6, 0], [2, 0, 0]])
        with caplog.at_level(logging.WARNING, "flwr"):
            parts = deal(values, histograms, np.random.default_rng(1))
        counts = [np.bincount(values[part], minlength=3).tolist() for part in parts]
        assert counts[0] == [3, 0, 0]
        assert counts[1] == [1, 9, 0]  # of its own categories, never of the third
        assert counts[2][0] == 0  # nothing of its own is left: from all others
        assert sum(counts[2]) == 2
        assert "categories (0) have run out; 2 of 3 clients, the first is 1" in caplog.text


class TestPartitioner:
    def test_a_federation_has_the_histograms_of_its_law(self) -> None:
        federation, dataset = federate(settings(**NEEDS, mdm_params="high-2"))
        counts = federation.class_counts(dataset)
        assert counts.sum(axis=1).tolist() == [20] * 8
        other, _ = federate(settings(**NEEDS, mdm_params="high-2", seed=2))
        assert not np.array_equal(counts, other.class_counts(dataset))

    def test_listed_histograms_are_dealt_other_rows(self, tmp_path: Path) -> None:
        drawn, dataset = federate(settings(**NEEDS, mdm_params="high-2"))
        counts = drawn.class_counts(dataset)
        (tmp_path / "law.json").write_text(json.dumps({"histograms": counts.tolist()}))
        listed, _ = federate(settings(**{**NEEDS, "samples_per_client": 0}, mdm_params=str(tmp_path / "law.json")))
        np.testing.assert_array_equal(listed.class_counts(dataset), counts)
        assert not np.array_equal(listed.train.rows, drawn.train.rows)

    def test_a_file_that_changes_while_the_process_runs_makes_a_new_federation(self, tmp_path: Path) -> None:
        file, sizes = tmp_path / "law.json", []
        for size in (5, 9):
            file.write_text(json.dumps({"histograms": [[size, *[0] * 9]] * 8}))
            federation, _ = federate(settings(**{**NEEDS, "samples_per_client": 0}, mdm_params=str(file)))
            sizes.append(federation.train.sizes.tolist())
        assert sizes == [[5] * 8, [9] * 8]

    def test_a_changed_file_has_another_fingerprint(self, tmp_path: Path) -> None:
        file = tmp_path / "law.json"
        found = []
        for size in (5, 9, 5):
            file.write_text(json.dumps({"histograms": [[size, *[0] * 9]] * 2}))
            found.append(fingerprint(str(file)))
        assert found[0] == found[2] != found[1]
        assert len({fingerprint(name) for name in NAMED}) == len(NAMED)

    def test_means_follow_the_law(self) -> None:
        """The mean share of category j is Σ τ_k α_kj/α_k0."""
        law = read_law("high-3", 50)
        counts = law.draw(4000, np.random.default_rng(1))
        assert law.mixture is not None
        τ, α = law.mixture.tau, law.mixture.alpha
        expected = (τ[:, None] * α / α.sum(axis=1, keepdims=True)).sum(axis=0)
        shares = counts / 50
        np.testing.assert_allclose(shares.mean(axis=0), expected, atol=5 * shares.std(axis=0).max() / np.sqrt(4000))


class TestLaws:
    @pytest.mark.parametrize("name", NAMED)
    def test_named_laws_are_whole(self, name: str) -> None:
        law = read_law(name, 20)
        assert law.mixture is not None
        assert law.mixture.tau.sum() == pytest.approx(1)
        assert len(law.mixture.alpha) == len(law.mixture.tau) == len(law.mixture.pi)

    def test_a_file_gives_what_it_says(self, tmp_path: Path) -> None:
        content = {"tau": [0.4, 0.6], "alpha": [[1, 2], [3, 4]], "pi": [[0.5, 0.5], [1, 0]], "edges": [1, 3, 8]}
        (tmp_path / "law.json").write_text(json.dumps(content))
        law = read_law(str(tmp_path / "law.json"), 0)
        assert isinstance(law, Law)
        assert law.categories == 2
        sizes = law.draw(200, np.random.default_rng(1)).sum(axis=1)
        assert sizes.min() >= 1
        assert sizes.max() <= 7
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "summary.json").write_text(json.dumps({"mdm": content}))
        again = read_law(str(tmp_path / "run"), 0).mixture
        assert isinstance(again, Mixture)
        np.testing.assert_array_equal(again.alpha, content["alpha"])

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"alpha": [[1, 2], [3, 0]]}, "alpha"),
            ({"tau": [1.0]}, "tau"),
            ({"pi": [[1.0, 0.0]]}, "pi"),
            ({"edges": [0, 3, 8]}, "edges are not increasing whole numbers from 1 on"),
            ({"edges": [1, 3, 3]}, "edges are not increasing whole numbers from 1 on"),
            ({"histograms": [[1, -2]]}, "-2.0 is no count"),
            ({"histograms": [[1, 0.5]]}, "0.5 is no count"),
            ({"tau": "x"}, "tau"),
        ],
    )
    def test_an_impossible_file_is_named(self, tmp_path: Path, change: dict[str, object], said: str) -> None:
        content = {"tau": [0.4, 0.6], "alpha": [[1, 2], [3, 4]], "pi": [[0.5, 0.5], [1, 0]], "edges": [1, 3, 8]}
        (tmp_path / "law.json").write_text(json.dumps(content | change))
        with pytest.raises(DataError, match=said) as caught:
            read_law(str(tmp_path / "law.json"), 0)
        assert "law.json" in str(caught.value)

    def test_mistakes_are_explained(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"'hihg-2' is neither a name nor an absolute path.*'high-2'"):
            read_law("hihg-2", 20)
        with pytest.raises(ConfigurationError, match=r"samples-per-client: 'high-2' says nothing of clients' sizes"):
            read_law("high-2", 0)
        with pytest.raises(DataError, match=r"none\.json cannot be read"):
            read_law(str(tmp_path / "none.json"), 0)
        with pytest.raises(ConfigurationError, match=r"the distribution has 5 categories, 'label' of 'digits' has 10"):
            federate(settings(**NEEDS, mdm_params="choice"))
        (tmp_path / "two.json").write_text(json.dumps({"histograms": [[5, *[0] * 9]] * 2}))
        with pytest.raises(ConfigurationError, match=r"mdm-params lists 2 histograms, not 8"):
            federate(settings(**{**NEEDS, "samples_per_client": 0}, mdm_params=str(tmp_path / "two.json")))


class TestHistograms:
    def test_clients_are_drawn_from_the_law(self) -> None:
        keys = {"dataset": "histograms", "partitioner": "natural", "samples_per_client": 30, "model": "linear"}
        federation, dataset = federate(settings(**keys, num_clients=500, mdm_params="high-2"))
        counts = federation.class_counts(dataset)
        assert counts.shape == (500, 10)
        assert counts.sum(axis=1).tolist() == [30] * 500
        assert federation.test.sizes.sum() == 0

    def test_it_needs_its_own_clients(self) -> None:
        with pytest.raises(ConfigurationError, match=r"needs partitioner = \"natural\" \(found: 'iid'\)"):
            federate(settings(dataset="histograms", partitioner="iid", model="linear", mdm_params="high-2"))
        keys = {"dataset": "histograms-5", "partitioner": "natural", "samples_per_client": 30, "model": "linear"}
        with pytest.raises(
            ConfigurationError, match=r"'histograms-5' has 5 categories, but the distribution 'high-2' has 10"
        ):
            federate(settings(**keys, mdm_params="high-2"))


class TestFeatures:
    def test_edges(self) -> None:
        assert parse_edges("0:200000:5000, inf") == [*range(0, 200001, 5000), float("inf")]  # 41 bins (A.3.2)
        assert parse_edges("-inf, 1.5, 3") == [-np.inf, 1.5, 3]
        for wrong in ("", "1", "2,1", "1,1", "a,b", "0:1:0", "nan,1"):
            with pytest.raises(ValueError, match="is not a list of increasing edges"):
                parse_edges(wrong)

    def test_numbers_on_an_edge_are_on_its_right_side(self) -> None:
        spec = replace(DATASETS["adult"], table=TableSchema({"income": (37_123.45, 51_234.5)}, {"sex": ("F", "M")}))
        incomes = np.concatenate([np.arange(0, 210_000, 5000), np.arange(0, 210_000, 5000)[1:] - 0.1])
        x = encode_table(spec.table, {"income": incomes.tolist(), "sex": ["F"] * len(incomes)}, "here")
        feature = find_feature(spec, "income", "0:200000:5000,inf")
        assert feature.categories == 41
        expected = np.minimum(np.concatenate([np.arange(42), np.arange(41)]), 40)
        np.testing.assert_array_equal(feature.values(x, x[:, 0]), expected)

    def test_words_are_the_categories_of_the_schema(self) -> None:
        columns = {name: [0.0, 1.0] for name in ADULT.numbers} | {
            name: [words[0], words[-1]] for name, words in ADULT.categories.items()
        }
        x = encode_table(ADULT, columns, "here")
        for name, words in ADULT.categories.items():
            feature = find_feature(DATASETS["adult"], name, "")
            assert feature.categories == len(words)
            assert feature.values(x, x[:, 0]).tolist() == [0, len(words) - 1]

    def test_mistakes_are_explained(self) -> None:
        adult = DATASETS["adult"]
        with pytest.raises(ConfigurationError, match=r"mdm\.feature: 'rase' is no feature of 'adult'.*'race'"):
            find_feature(adult, "rase", "")
        with pytest.raises(ConfigurationError, match=r"mdm\.bins: 'age' holds numbers"):
            find_feature(adult, "age", "")
        with pytest.raises(ConfigurationError, match=r"mdm\.bins: 'race' has categories already"):
            find_feature(adult, "race", "0,1")
        feature = find_feature(adult, "age", "30,40")
        x = np.zeros((1, 108), np.float32)  # the mean age, 38.6
        assert feature.values(x, x[:, 0]).tolist() == [0]
        x[0, 0] = 3
        assert feature.values(x, x[:, 0]).tolist() == [-1]
