"""The command line, without a simulation: lists, federations, reports, export and predictions, and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.cli.run import _tell_coefficients
from florilegium.apps.runs.experiment import read_assignments, resolve
from florilegium.clients.core.export import learned_by, load_model, predict, save_model
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError, FlorilegiumError, RunError
from florilegium.models.centers import Centers
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.datasets import DATASETS, find_spec
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import CACHE, Value, config, settings

FEDERATION: dict[str, Value] = {"num-clients": 5, "cache-dir": str(CACHE)}


def _call(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def _sets(keys: dict[str, Value]) -> list[str]:
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def _finished(tmp_path: Path, name: str, **keys: Value) -> Path:
    run_app(
        config(**{**FEDERATION, "rounds": 2, "evaluate-every": 1, "runs-dir": str(tmp_path), "run-name": name, **keys})
    )
    return tmp_path / name


class TestSuccess:
    def test_methods_and_datasets_are_listed(self) -> None:
        methods = _call("methods")
        assert all(word in methods for word in ("fedavg", "fedprox", "local", "fedprox.mu"))
        listed = _call("datasets")
        assert all(name in listed for name in DATASETS)

    def test_partition_shows_and_draws_a_federation(self, tmp_path: Path) -> None:
        output = _call("partition", *_sets(FEDERATION), "--output", str(tmp_path / "map.png"))
        federation, dataset = federate(settings(**FEDERATION))
        for count in federation.class_counts(dataset)[0]:
            assert str(count or "·") in output
        with Image.open(tmp_path / "map.png") as picture:
            assert min(picture.size) > 300

    def test_partition_writes_device_folders(self, tmp_path: Path) -> None:
        _call("partition", *_sets(FEDERATION), "--devices", str(tmp_path))
        federation, _ = federate(settings(**FEDERATION))
        for client in range(5):
            rows = pyarrow.parquet.read_table(tmp_path / str(client) / "train.parquet").num_rows
            assert rows == federation.train.sizes[client]

    def test_report_on_two_runs(self, tmp_path: Path) -> None:
        a, b = _finished(tmp_path, "a"), _finished(tmp_path, "b", method="local", **{"finetune-epochs": 1})
        output = _call("report", "a", str(b), "--runs-dir", str(tmp_path), "--output", str(tmp_path / "report"))
        final = json.loads((a / "summary.json").read_text())["final"]["seen"]
        assert f"fedavg\tseen (5)\t1\t2\t{100 * final['accuracy']:.1f}\t" in output
        assert "local+ft" in output
        assert "local+ft − fedavg\taccuracy\tseen (5)\t" in output  # the same clients
        assert "](report.png)" in (tmp_path / "report" / "report.md").read_text()
        with Image.open(tmp_path / "report" / "report.png") as picture:
            assert picture.size[0] > 1000

    def test_exported_model_is_the_one_that_was_evaluated(self, tmp_path: Path) -> None:
        # With few rounds and more classes a client, the global model is bad and tuning changes it visibly.
        keys: dict[str, Value] = {**FEDERATION, "finetune-epochs": 2, "rounds": 1, "classes-per-client": 5}
        run = _finished(tmp_path, "tuned", **keys)
        _call("export", "tuned", "--client", "3", "--output", str(tmp_path / "model"), "--runs-dir", str(tmp_path))
        model, card = load_model(tmp_path / "model")
        assert (card.client, card.run, card.model) == ("3", "tuned", "mlp")
        test = simulated(*federate(settings(**keys)), 3).test
        accuracy = float((model(test.x).argmax(1) == test.y).float().mean())
        rows = (run / "clients.csv").read_text().splitlines()
        evaluated = dict(zip(rows[0].split(","), rows[4].split(","), strict=True))
        assert evaluated["client"] == "3"
        assert accuracy == pytest.approx(float(evaluated["accuracy"]))
        assert evaluated["accuracy"] != evaluated["accuracy_global"]

    def test_a_new_clients_model_and_its_place_among_descriptors(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"method": "pefll", "pefll.keep-descriptors": True, "server-learning-rate": 0.1}
        _finished(tmp_path, "made", **keys)
        _call("partition", *_sets(FEDERATION), "--devices", str(tmp_path / "devices"))
        here, models = ["--runs-dir", str(tmp_path)], {}
        for name, whose in {"own": ["--client", "2"], "new": ["--data", str(tmp_path / "devices" / "2")]}.items():
            _call("personalise", "made", *whose, "--output", str(tmp_path / name), *here)
            models[name] = load_model(tmp_path / name)[0].state_dict()
        for name, tensor in models["own"].items():  # the same data, described as a whole
            torch.testing.assert_close(models["new"][name], tensor, atol=1e-5, rtol=0)
        shown = _call("descriptors", "made", "--output", str(tmp_path / "report"), *here)
        assert shown.startswith((tmp_path / "report" / "descriptors.md").read_text())

    @pytest.mark.parametrize("whose", [[], ["--client", "2", "--data", "."]])
    def test_a_model_is_made_for_one_client(self, whose: list[str], tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"either --client.*or --data"):
            _call("personalise", "made", *whose, "--output", str(tmp_path / "model"))

    def test_whether_a_client_of_the_run_has_labels_is_known(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="--unlabeled goes with --data"):
            _call("personalise", "made", "--client", "2", "--unlabeled", "--output", str(tmp_path / "model"))

    def test_exported_local_model_is_the_clients_own(self, tmp_path: Path) -> None:
        run = _finished(tmp_path, "alone", method="local", participation=1.0)
        _call("export", "alone", "--client", "0", "--output", str(tmp_path / "model"), "--runs-dir", str(tmp_path))
        model, _ = load_model(tmp_path / "model")
        assert not np.allclose(model.state_dict()["fc3.weight"], read_checkpoint(run).arrays["fc3.weight"])

    def test_predictions_of_parquet_image_and_npy_agree(self, tmp_path: Path) -> None:
        _finished(tmp_path, "run")
        _call("export", "run", "--client", "0", "--output", str(tmp_path / "model"), "--runs-dir", str(tmp_path))
        _call("partition", *_sets(FEDERATION), "--devices", str(tmp_path / "devices"))
        parquet = tmp_path / "devices" / "0" / "test.parquet"
        lines = _call("predict", str(tmp_path / "model"), str(parquet)).splitlines()
        model, _ = load_model(tmp_path / "model")
        with torch.no_grad():
            test = simulated(*federate(settings(**FEDERATION)), 0).test
            expected = torch.softmax(model(test.x), 1).max(1)
        assert lines[0] == "row,class,probability"
        assert [int(line.split(",")[1]) for line in lines[1:]] == expected.indices.tolist()
        first = pyarrow.parquet.read_table(parquet).column("image")[0].as_py()["bytes"]
        (tmp_path / "first.png").write_bytes(first)
        with Image.open(tmp_path / "first.png") as image:
            np.save(tmp_path / "first.npy", np.asarray(image)[None, :, :, None])
        wanted = lines[1].split(",")
        for name in ("first.png", "first.npy"):
            found = _call("predict", str(tmp_path / "model"), str(tmp_path / name)).splitlines()[1].split(",")
            assert found[:2] == wanted[:2]
            # Six digits are printed, and one image alone is summed in another order than among others.
            assert float(found[2]) == pytest.approx(float(wanted[2]), abs=1.5e-6)

    def test_predictions_are_words_where_the_data_have_words(self, tmp_path: Path) -> None:
        keys = settings(dataset="adult", model="linear")
        network = network_for(find_spec("adult"), NetworkSettings(model="linear"), seed=1)
        save_model(tmp_path, network, "0", "run", keys)
        rows = np.random.default_rng(1).normal(size=(20, 108)).astype(np.float32)
        np.save(tmp_path / "rows.npy", rows)
        expected = [
            ("<=50K", ">50K")[best]
            for best in predict(network, torch.from_numpy(rows), find_spec("adult").learned).argmax(1).tolist()
        ]
        assert set(expected) == {"<=50K", ">50K"}

        def classes() -> list[str]:
            lines = _call("predict", str(tmp_path), str(tmp_path / "rows.npy")).splitlines()
            return [line.split(",")[1] for line in lines[1:]]

        assert classes() == expected
        card = json.loads((tmp_path / "card.json").read_text())
        labels = card.pop("labels")
        (tmp_path / "card.json").write_text(json.dumps(card))  # as earlier versions wrote it
        assert classes() == expected
        (tmp_path / "card.json").write_text(json.dumps({**card, "labels": labels[::-1]}))
        assert classes() == [labels[1 - labels.index(label)] for label in expected]

    def test_clusters_are_numbered_even_if_the_data_have_labels(self) -> None:
        assert learned_by(nn.Sequential(Centers(108, 2)), find_spec("adult")).targets.labels == ()


class TestFailure:
    def test_assignments_are_toml_or_words(self) -> None:
        words = ["rounds=3", "alpha=0.5", "balanced=true", "method=local", 'model="mlp"', "angles=0,90"]
        assert read_assignments(words) == {
            "rounds": 3, "alpha": 0.5, "balanced": True, "method": "local", "model": "mlp", "angles": "0,90",
        }  # fmt: skip
        with pytest.raises(ConfigurationError, match="expected key=value"):
            read_assignments(["rounds"])

    def test_an_unknown_recipe_names_the_known_ones(self) -> None:
        with pytest.raises(ConfigurationError, match="ppfe-cifar10-s2-fedavg"):
            resolve("ppfe-cifar10-s2-fedag", [], {})

    def test_a_resumed_run_need_not_be_described_again(self, tmp_path: Path) -> None:
        path = _finished(tmp_path, "described", **{"learning-rate": 0.02, "method": "fedprox"})
        overrides = resolve(None, ["resume=described", "rounds=4"], {"runs-dir": str(tmp_path)})
        assert (overrides["learning-rate"], overrides["method"], overrides["rounds"]) == (0.02, "fedprox", 4)
        assert resolve(None, [f"resume={path}"], {})["resume"] == "described"

    def test_names_that_look_like_numbers_are_names(self) -> None:
        for name in ("7", "1.10", "007", "1e3", "true", "0x10", "1_000", "2026-01-01", "inf", "[1]"):
            for key in ("run-name", "resume", "init", "dataset"):
                assert read_assignments([f"{key}={name}"]) == {key: name}
        assert read_assignments(['run-name="1.10"', "run-name = 7 "]) == {"run-name": "7"}

    def test_relative_folders_are_the_callers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert resolve(None, ["runs-dir=here"], {})["runs-dir"] == str(tmp_path / "here")

    def test_unknown_runs_clients_and_models(self, tmp_path: Path) -> None:
        _finished(tmp_path, "run")
        cases: list[tuple[list[str], type[FlorilegiumError], str]] = [
            (["report", "nothing", "--runs-dir", str(tmp_path)], 
             ConfigurationError, "no run 'nothing'.*Newest runs: run"),
            (["export", "run", "--client", "9", "--output", str(tmp_path / "m"), "--runs-dir", str(tmp_path)],
             ConfigurationError, "no client '9'.*0 to 4"),
            (["predict", str(tmp_path / "m"), "x.npy"], RunError, "no readable model"),
            (["compare", "fedavgg"], ConfigurationError, "did you mean 'fedavg'"),
        ]  # fmt: skip
        for words, kind, message in cases:
            with pytest.raises(kind, match=message):
                _call(*words)

    def test_a_wrong_key_ends_the_command_before_any_client_is_asked(self, tmp_path: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "florilegium",
            "run",
            "--runs-dir",
            str(tmp_path),
            "--set",
            "roundz=3",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "roundz: there is no such key; did you mean 'rounds'" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [["glm"], ["survival", "model"]])
def test_a_run_ends_with_the_coefficients_of_its_regression(
    place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, so that the last line of standard output stays the folder; none is cut on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    one = {"coefficient": -2.8104e-05, "standard_error": 1.1184e-05, "statistic": -10.4263, "p": 7.924e-27}
    one |= {"low": -5.002e-05, "high": -6.176e-06}
    lines = [{"name": "dose", **one}, {"name": "lost", **dict.fromkeys(one)}]
    content: dict[str, Any] = {"coefficients": lines}
    for name in reversed(place):
        content = {name: content}
    (tmp_path / "summary.json").write_text(json.dumps({"rounds": 1, "final": {}, **content}))
    _tell_coefficients(tmp_path)
    out, told = capsys.readouterr()
    assert not out
    rows = [line.split() for line in told.splitlines()]
    assert ["dose", "-2.81e-05", "1.12e-05", "-10.4", "7.92e-27", "-5e-05", "-6.18e-06"] in rows
    assert ["lost", *"––––––"] in rows
    assert "…" not in told
