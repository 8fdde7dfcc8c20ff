"""Runs on a pretrained transformer: adapters and head travel and are stored, the base stays in its own files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from florilegium.apps.assembly.parts import assemble
from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model
from florilegium.clients.core.training import by_length
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.frozen import FILE
from florilegium.models.parameters import num_bytes
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.pretrained import keys, tiny
from tests.runs import Runs
from tests.support import config


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    return Runs(tmp_path, keys())


def test_adapters_and_head_travel_and_are_stored(run: Runs) -> None:
    path = run("run", method="ditto")
    assembly = assemble(config(**keys()), one_thread=True)
    size = num_bytes(assembly.initial)
    last = read_metrics(path)[-1]
    assert last["bytes_up"] == 2 * 3 * size
    assert last["bytes_down"] == 2 * 3 * size
    stored = [load_file(file) for file in path.rglob("*.safetensors")]
    assert all(name.rpartition("/")[2].startswith(("A.", "B.", "head.")) for arrays in stored for name in arrays)
    assert read_checkpoint(path).facts["frozen"] == assembly.frozen.hash
    assert not (path / FILE).exists()


def test_it_learns(run: Runs) -> None:
    path = run("run", rounds=10, pooling="mean", **{"optimizer": "adam", "learning-rate": 0.01})
    found = [line["training"]["loss"] for line in read_metrics(path) if "training" in line]
    assert found[-1] < 0.95 * found[0]


def test_resuming_and_packing_change_nothing(run: Runs) -> None:
    run.check_resume_and_packing(rounds=4, method="fedper", **{"fedper.personal": "B,head"})


def test_another_base_is_refused_when_a_run_is_resumed(run: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    run("run", model=f"transformers:{folder}")
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file(weights | {name: weights[name] + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError, match=r"the pretrained network has [0-9a-f]{16}; put back"):
        run("run", model=f"transformers:{folder}", rounds=3, resume="run")


def test_a_personal_model_names_its_base(run: Runs, tmp_path: Path) -> None:
    path = run("run", method="fedper")
    model, card = load_model(personalise(path, tmp_path / "out", "0"))
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert {name.partition(".")[0] for name in arrays} == {"A", "B", "head"}
    assert card.base == read_checkpoint(path).facts["frozen"]
    x = torch.tensor([[2, 5, 6, 3, -1, -1]])
    assert model(x).shape == (1, 3)


def test_fixed_blocks_are_not_sent(run: Runs) -> None:
    run("run", **{"adapter.fixed": "A"})
    sent = {name for message in run.grid.sent if "arrays" in message.content for name in message.content["arrays"]}
    assert sent
    assert not any(name.startswith("A.") for name in sent)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fedper.personal": "C", "method": "fedper"}, "personal: the network has no block .C.; its blocks"),
        ({"fedper.personal": "A,B,base,head", "method": "fedper"}, "at least one block must be left"),
        ({"adapter.kind": "head"}, "targets is for kind = 'lora'"),
        ({"bucket": True, "dataset": "digits", "model": "mlp", "adapter.kind": "none", "adapter.targets": ""},
         "bucket: 'digits' has no texts"),
        ({"text-length": 65}, "text-length: .* reads 64 tokens at most"),
        ({"weights": "/nothing.safetensors"}, "weights: .* has weights of its own"),
    ],
)  # fmt: skip
def test_wrong_keys_are_refused(run: Runs, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run("run", **wrong)  # type: ignore[arg-type]


def test_batches_of_texts_of_similar_length() -> None:
    rng = np.random.default_rng(1)
    lengths = torch.from_numpy(rng.integers(1, 30, 100))
    x = torch.where(torch.arange(30)[None] < lengths[:, None], 1, -1)
    rows = torch.from_numpy(rng.permutation(100))
    found = by_length(rows, x, 8, torch.Generator().manual_seed(1))
    assert sorted(torch.cat(found).tolist()) == [*range(100)]
    assert sorted(map(len, found)) == [4] + [8] * 12
    spread = [int(lengths[batch].max() - lengths[batch].min()) for batch in found]
    random = [int(lengths[batch].max() - lengths[batch].min()) for batch in rows.split(8)]
    assert sum(spread) < 0.2 * sum(random)
    assert [len(batch) for batch in found] != sorted(map(len, found), reverse=True) or spread != sorted(spread)


def test_an_epoch_by_length_has_every_example(run: Runs) -> None:
    whole, bucket = (run(name, bucket=name == "bucket", rounds=1) for name in ("whole", "bucket"))
    first, second = (read_metrics(path)[-1] for path in (whole, bucket))
    assert first["bytes_up"] == second["bytes_up"]
    assert (
        read_checkpoint(whole).arrays["head.weight"].tolist() != read_checkpoint(bucket).arrays["head.weight"].tolist()
    )
