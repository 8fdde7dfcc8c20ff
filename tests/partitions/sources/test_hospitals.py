"""Fed-Heart-Disease and Fed-TCGA-BRCA: made files against pandas, your copies against FLamby's sizes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from florilegium.common.errors import DataError
from florilegium.partitions.federation import federate
from florilegium.partitions.sources import brca, heart
from florilegium.partitions.sources.source import DATA_VARIABLE
from tests.support import load, settings

REAL = Path(os.environ.get(DATA_VARIABLE, "/nowhere"))
NAMES = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"


def _rows(count: int, seed: int) -> list[list[object]]:
    """Make rows of a hospital, each fifth without a used column, each third without an unused one."""
    rng, rows = np.random.default_rng(seed), []
    for row in range(count):
        cells: list[object] = [
            int(rng.integers(30, 80)), row % 2, 1 + row % 4, int(rng.integers(90, 180)), int(rng.integers(100, 400)),
            row % 3 % 2, row % 3, int(rng.integers(60, 200)), row % 2, round(float(rng.normal()), 1), 1, 0, 3,
            int(rng.integers(0, 5)),
        ]  # fmt: skip
        if row % 5 == 0:
            cells[3] = "?"
        if row % 3 == 0:
            cells[11] = ""
        rows.append(cells)
    return rows


@pytest.fixture
def hospitals(tmp_path: Path) -> dict[str, list[list[object]]]:
    """Write made files, one with a line of names; return their rows."""
    folder = tmp_path / heart.FOLDER
    folder.mkdir()
    made = {name: _rows(40 + 10 * number, number) for number, name in enumerate(heart.HOSPITALS)}
    for name, rows in made.items():
        lines = [",".join(map(str, row)) for row in rows]
        head = [NAMES] if name == "va" else []
        (folder / f"processed.{name}.data").write_text("\n".join([*head, *lines]) + "\n")
    return made


def _expected(rows: list[list[object]]) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the 13 features and the target of a hospital's rows, by pandas."""
    frame = pd.DataFrame(rows, columns=NAMES.split(",")).drop(columns=["slope", "ca", "thal"])
    frame = frame[frame["trestbps"] != "?"].astype(float)
    dummies = pd.get_dummies(frame[["cp", "restecg"]].astype(int), columns=["cp", "restecg"], drop_first=True)
    plain = frame.drop(columns=["cp", "restecg", "target"])
    return pd.concat([plain, dummies.astype(float)], axis=1), (frame["target"] > 0).to_numpy().astype(int)


class TestHeart:
    def test_rows_and_features(self, hospitals, tmp_path):
        """All rows of training and test part together are pandas' rows, whole and in their units."""
        dataset = load("fed-heart-raw", str(tmp_path), str(tmp_path / "cache"))
        assert dataset.test is not None
        for name, rows in hospitals.items():
            features, target = _expected(rows)
            assert list(features.columns) == list(heart.FEATURES)
            parts = [(part.x, part.y, part.clients["hospital"] == name) for part in (dataset.train, dataset.test)]
            x = np.concatenate([x[own] for x, _, own in parts])
            y = np.concatenate([y[own] for _, y, own in parts])
            wanted = np.column_stack([features.to_numpy(), target])
            found = np.column_stack([x, y])
            assert sorted(map(tuple, found.round(3))) == sorted(map(tuple, wanted.round(3)))
            held = sum(parts[1][2])
            assert held == np.ceil(0.34 * len(target))
            assert abs(parts[1][1][parts[1][2]].mean() - target.mean()) < 1 / held  # stratified
        again = load("fed-heart-raw", str(tmp_path), str(tmp_path / "other"))
        np.testing.assert_array_equal(again.train.x, dataset.train.x)

    @pytest.mark.parametrize("name", ["fed-heart", "fed-heart-pooled"])
    def test_training_rows_standardise(self, name, hospitals, tmp_path):
        """Of each hospital, or of all, training inputs have mean 0 and deviation 1; test inputs have their scale."""
        plain, scaled = (load(kind, str(tmp_path), str(tmp_path / "cache")) for kind in ("fed-heart-raw", name))
        owners = plain.train.clients["hospital"] if name == "fed-heart" else np.zeros(len(plain.train), int)
        tested = plain.test.clients["hospital"] if name == "fed-heart" else np.zeros(len(plain.test), int)
        for group in np.unique(owners):
            x = scaled.train.x[owners == group]
            np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
            np.testing.assert_allclose(x.std(axis=0, ddof=1), 1, atol=1e-5)
            own = plain.train.x[owners == group].astype(float)
            wanted = (plain.test.x[tested == group] - own.mean(axis=0)) / own.std(axis=0, ddof=1)
            np.testing.assert_allclose(scaled.test.x[tested == group], wanted, atol=1e-5)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: text.replace("?", "x", 1), "no number"),
            (lambda text: "60,1,7,100,200,0,0,100,0,0,,,,1\n" + text, "'cp' has 7; its codes are"),
            (lambda text: "", "has 0 rows without a missing value"),
        ],
    )
    def test_what_is_wrong_in_a_file_is_named(self, change, message, hospitals, tmp_path):
        file = tmp_path / heart.FOLDER / "processed.hungarian.data"
        file.write_text(change(file.read_text()))
        with pytest.raises(DataError, match=message) as caught:
            load("fed-heart", str(tmp_path), str(tmp_path / "cache"))
        assert str(caught.value).startswith(str(file))


class TestBreastCancer:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Write a made file of 24 patients, three for each part of three regions; some are in no part."""
        folder, rng = tmp_path / brca.FOLDER, np.random.default_rng(1)
        folder.mkdir()
        table = pd.DataFrame(rng.integers(0, 2, (24, 39)), columns=list(brca.FEATURES))
        table.insert(0, "pid", [f"p{row}" for row in range(24)])
        table["E"], table["T"] = [row % 2 for row in range(24)], [float(row) for row in range(24)]
        table.to_csv(folder / "brca.csv", index=False)
        folds = [f"{part}_{region}" for region in (5, 0, 3) for part in ("train", "test")] * 3
        split = pd.DataFrame({"pid": table["pid"][:18][::-1], "fold": "", "fold2": folds})
        split["fold"] = split["fold2"].str.split("_").str[0]
        split.to_csv(folder / "train_test_split.csv", index=False)
        return folder

    def test_patients_are_in_their_parts(self, folder, tmp_path):
        dataset = load("fed-tcga-brca", str(tmp_path), str(tmp_path / "cache"))
        table = pd.read_csv(folder / "brca.csv").merge(pd.read_csv(folder / "train_test_split.csv"), on="pid")
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            rows = table[table["fold"] == part]
            np.testing.assert_array_equal(split.x, rows[list(brca.FEATURES)])
            np.testing.assert_array_equal(split.y, np.column_stack([rows["T"] + 1, rows["E"]]))
            regions = rows["fold2"].str[-1].map({"5": "Canada", "0": "Northeast", "3": "Midwest"})
            np.testing.assert_array_equal(split.clients["region"], regions)

    @pytest.mark.parametrize(
        ("file", "change", "message"),
        [
            ("brca.csv", lambda table: table.rename(columns={"E": "event"}), "no column 'E'"),
            ("brca.csv", lambda table: pd.concat([table, table[3:4]]), "patient p3 is there twice"),
            ("train_test_split.csv", lambda table: table.replace("train_5", "train_6"), "'fold2' has 'train_6'"),
        ],
    )
    def test_what_is_wrong_in_a_file_is_named(self, file, change, message, folder, tmp_path):
        change(pd.read_csv(folder / file)).to_csv(folder / file, index=False)
        with pytest.raises(DataError, match=message) as caught:
            load("fed-tcga-brca", str(tmp_path), str(tmp_path / "cache"))
        assert str(caught.value).startswith(str(folder / file))


@pytest.mark.parametrize(("name", "file"), [("fed-heart", "processed.va.data"), ("fed-tcga-brca", "brca.csv")])
class TestMissingFiles:
    def test_messages_say_where_to_get_them(self, name, file, tmp_path, monkeypatch):
        with pytest.raises(DataError, match=rf"{file}.* is missing\. They are .*(uci\.edu|github\.com)"):
            load(name, str(tmp_path), str(tmp_path / "cache"))
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        with pytest.raises(DataError, match=rf"your copy of .*{file}.* name the folder above it in {DATA_VARIABLE}"):
            load(name, "", str(tmp_path / "cache"))


@pytest.mark.skipif(not (REAL / heart.FOLDER).is_dir(), reason="no copy of the data")
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("fed-heart", {"cleveland": (199, 91), "hungarian": (172, 65), "switzerland": (30, 30), "va": (85, 66)},
         {"cleveland": (104, 48), "hungarian": (89, 33), "switzerland": (16, 15), "va": (45, 35)}),
        ("fed-tcga-brca",
         {"Northeast": (248, 45), "South": (156, 35), "West": (164, 14), "Midwest": (129, 16), "Europe": (129, 7),
          "Canada": (40, 2)},
         {"Northeast": (63, 14), "South": (40, 4), "West": (42, 8), "Midwest": (33, 3), "Europe": (33, 2),
          "Canada": (11, 1)}),
    ],
)  # fmt: skip
def test_sizes_are_flambys(name, train, test, tmp_path):
    """Rows and positive rows, or events, of each client of the real data, as FLamby divides them."""
    keys = {"dataset": name, "partitioner": "natural", "num-clients": 0, "data-dir": str(REAL)}
    federation, dataset = federate(settings(**keys, cache_dir=str(tmp_path)))
    for split, shares, wanted in ((dataset.train, federation.train, train), (dataset.test, federation.test, test)):
        counts = {
            str(client): (len(shares[i]), int(split.y.reshape(len(split), -1)[shares[i], -1].sum()))
            for i, client in enumerate(federation.names)
        }
        assert counts == wanted
