"""Devices with copies of a pretrained base: what they learn, who is refused, and predictions of a file of texts."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.devices.stored_runs import kept
from florilegium.clients.core.export import load_model
from florilegium.common.settings import Value
from florilegium.strategies.folder.metrics_file import read_evaluations
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests import pretrained
from tests.site import site

pytestmark = [pytest.mark.deployment, pytest.mark.long]  # the same is tested in simulations; a site takes minutes

CLIENTS = ("north", "south", "west")
STRANGER = "stranger"
SCHEMA = 'label = "topic"\nlabels = ["a", "b", "c"]\n\n[texts]\ncolumn = "text"\nlength = 64\n'
KEYS: dict[str, Value] = {
    "method": "fedsa-lora", "model": "transformers:base", "adapter.kind": "lora", "adapter.targets": "query,value",
    "num-clients": 3, "participation": 1.0, "rounds": 2, "local-epochs": 1, "batch-size": 8, "learning-rate": 0.1,
    "evaluate-every": 2, "start-timeout": 600.0, "min-success": 0.5,
}  # fmt: skip


def _write(folder: Path) -> None:
    """Write the schema, each device's texts, and each one's copy of the base; the stranger's has other weights."""
    (folder / "topics").mkdir()
    (folder / "topics" / "schema.toml").write_text(SCHEMA)
    ((texts, y), _) = pretrained.questions()
    for number, name in enumerate((*CLIENTS, STRANGER)):
        rows = pd.DataFrame({"text": texts[number::4], "topic": [*np.array(["a", "b", "c"])[y[number::4]]]})
        rows.to_csv(folder / f"{name}.csv", index=False)
        shutil.copytree(pretrained.tiny(), folder / f"models-{name}" / "base")
    weights = folder / f"models-{STRANGER}" / "base" / "model.safetensors"
    other = {key: value + 0.01 if value.is_floating_point() else value for key, value in load_file(weights).items()}
    save_file(other, weights, metadata={"format": "pt"})


def _predicted(folder: Path, name: str, texts: list[str]) -> list[dict[str, str]]:
    (folder / "new.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    words = ["device", "predict", "adapters", folder / "new.csv", "--state-dir", folder / "state" / name]
    done = CliRunner().invoke(cli, [*map(str, words), "--client", name], standalone_mode=False)
    if done.exception:
        raise done.exception
    return [*csv.DictReader(io.StringIO(done.stdout))]


def test_supernodes_with_copies_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path)
    monkeypatch.setenv("FLORILEGIUM_MODELS", str(tmp_path / f"models-{CLIENTS[0]}"))  # the server's
    with site(tmp_path) as started:
        for name in (*CLIENTS, STRANGER):
            started.start_node(name, tmp_path / f"{name}.csv", FLORILEGIUM_MODELS=tmp_path / f"models-{name}")
            started.wait_for_node(name, 1)
        run = started.run("adapters", **{**KEYS, "dataset": str(tmp_path / "topics")})
    (refused,) = json.loads((run / "summary.json").read_text())["refused"]
    assert f"(client {STRANGER}) has other frozen parameters in its network" in refused
    assert (run / "clients.csv").read_text().count(STRANGER) == 0
    sent = read_checkpoint(run).arrays
    assert sum(array.size for array in sent.values()) < 0.1 * sum(
        value.numel() for value in load_file(pretrained.tiny() / "model.safetensors").values()
    )
    (*_, last) = read_evaluations(run)
    assert 0 <= last["seen"]["accuracy"] <= 1
    models = {}
    texts = ["w1 w2 w3 w4", "w51 w60 w70", "w120 w130"]
    for name in CLIENTS:
        (own,) = kept(tmp_path / "state" / name, "adapters")
        model, card = load_model(own.folder)
        assert (card.client, card.method) == (name, "fedsa-lora")
        models[name] = {key: value for key, value in model.state_dict().items() if "lora" in key}
        assert [row["class"] in "abc" for row in _predicted(tmp_path, name, texts)] == [True] * 3
    first, *others = models.values()
    own = [key for key in first if "lora_B" in key]
    assert own
    for key in own:  # each device's own
        assert not any(torch.equal(first[key], other[key]) for other in others), key
