"""Runs on a pretrained transformer: adapters and head travel and are stored, the base stays in its own files."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from florilegium.apps.assembly.parts import assemble
from florilegium.apps.runs.personal import personalise
from florilegium.apps.runs.predictions import write_predictions
from florilegium.clients.core import training
from florilegium.clients.core.export import load_model
from florilegium.clients.core.training import batches, by_length, evaluate
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.memo import forget
from florilegium.common.settings import Value
from florilegium.models.frozen import FILE
from florilegium.models.parameters import num_bytes
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.pretrained import WORDS, keys, questions, tiny, tiny_generator
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
        ({"gradient-checkpointing": True, "dataset": "digits", "model": "mlp", "adapter.targets": "0"},
         "gradient-checkpointing is for transformers"),
        ({"micro-batch": 2, "method": "fediir"}, "micro-batch: not with method 'fediir'"),
        ({"micro-batch": 2, "vectorise": 2}, "micro-batch: not with vectorise = 2"),
        ({"bucket": True, "privacy.unit": "example", "privacy.epsilon": 8.0}, "bucket: .* Poisson .* with micro-batch"),
        ({"precision": "bf16", "privacy.unit": "example", "privacy.epsilon": 8.0, "dataset": "digits",
          "model": "cnn-bn", "adapter.kind": "none", "adapter.targets": ""},
         "precision: not with privacy.unit .* Opacus"),
        ({"micro-batch": 2, "dataset": "digits", "model": "cnn-bn", "adapter.kind": "none", "adapter.targets": ""},
         "micro-batch: not with batch norm"),
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
    longest = [int(lengths[batch].max()) for batch in found]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))  # the batches come in random order


def test_an_epoch_by_length_has_every_example() -> None:
    data = assemble(config(**keys(bucket=True)), one_thread=True).simulated_clients().data("0").train
    epochs = [
        [*batches(data, 8, torch.Generator().manual_seed(1), bucket=bucket)] for bucket in (False, True)
    ]  # fmt: skip
    assert all(sorted(torch.cat(epoch).tolist()) == [*range(len(data))] for epoch in epochs)
    plain, bucket = (sum(len(rows) * int((data.x[rows] >= 0).sum(dim=1).max()) for rows in epoch) for epoch in epochs)
    assert bucket < plain  # tokens that are computed, padding included
    features = Examples(torch.randn(len(data), 4), data.y)  # of texts, as a body makes them: they have no length
    again = [*batches(features, 8, torch.Generator().manual_seed(1), bucket=True)]
    assert all(torch.equal(one, other) for one, other in zip(again, epochs[0], strict=True))


def _changed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file(weights | {name: weights[name] + 1}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_run_does_not_start_from_one_on_another_base(run: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    run("first", model=f"transformers:{folder}")
    run("same", model=f"transformers:{folder}", init="first", rounds=1)
    _changed(folder)
    with pytest.raises(ConfigurationError, match=r"init: run 'first' has trained beside frozen parameters of hash"):
        run("other", model=f"transformers:{folder}", init="first", rounds=1)


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_other_files_of_the_base_are_noticed(run: Runs, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(tiny(), tmp_path / "base")
    path = run("run", model=f"transformers:{folder}", rounds=1)
    model = personalise(path, tmp_path / "out", "0")
    (folder / file).parent.mkdir(exist_ok=True)
    if file == "1_Pooling/config.json":
        (folder / file).write_text('{"pooling_mode_mean_tokens": true}')
    else:
        (folder / file).write_text((folder / file).read_text().replace('"gelu"', '"relu"').replace('"w7"', '"v7"'))
    forget()
    with pytest.raises(RunError, match="trained with other files of"):
        load_model(model)
    with pytest.raises(ConfigurationError, match=r"began with another .*pretrained model"):
        run("run", model=f"transformers:{folder}", rounds=2, resume="run")


def test_an_export_has_what_no_file_has(run: Runs, tmp_path: Path) -> None:
    """A fixed A, and parameters that the base's file lacks, are drawn from the run's seed."""
    folder = shutil.copytree(tiny(), tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    kept = {name: array for name, array in weights.items() if not name.startswith("pooler.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    path = run("run", model=f"transformers:{folder}", seed=7, **{"adapter.fixed": "A"})
    _, card = load_model(personalise(path, tmp_path / "out", "0"))
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert {name.partition(".")[0] for name in arrays} == {"A", "B", "base", "head"}
    assert {name for name in arrays if name.startswith("base")} == {
        "base.model.pooler.dense.weight", "base.model.pooler.dense.bias"
    }  # fmt: skip
    assembly = assemble(
        config(**keys(model=f"transformers:{folder}", seed=7, **{"adapter.fixed": "A"})), one_thread=True
    )
    drawn = {name: array for name, array in assembly.whole.items() if name.startswith("A.")}
    assert all(np.array_equal(arrays[name], array) for name, array in drawn.items())
    assert card.base


def test_a_model_that_reads_both_ways_does_not_predict_the_next_token(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="would see what it is to predict"):
        run("run", **{**_generating(), "model": f"transformers:{tiny()}"})


def test_a_prompt_needs_positions(run: Runs) -> None:
    wrong: dict[str, Value] = {"adapter.kind": "prompt", "adapter.tokens": 20}
    with pytest.raises(ConfigurationError, match=r"32 tokens and adapter.tokens = 20 are more than the 32"):
        run("run", **{**_generating(), **wrong})


# ---------------------------------------------------------------------------------------------------- next token


def _generating(**more: Value) -> dict[str, Value]:
    given: dict[str, Value] = {"model": f"transformers:{tiny_generator()}", "task": "next-token", "adapter.targets": ""}
    return keys(**given | more)


def test_the_loss_of_the_next_token_is_that_of_transformers() -> None:
    assembly = assemble(config(**_generating()), one_thread=True)
    model = AutoModelForCausalLM.from_pretrained(tiny_generator()).eval()
    data = assembly.simulated_clients().data("0").test
    task = dataset_of(assembly.settings).learned
    found = evaluate(assembly.network, data, task)
    with torch.no_grad():
        texts = [row[row >= 0][None] for row in data.x]
        losses = [float(model(input_ids=text, labels=text).loss) for text in texts]
    counts = [text.shape[1] - 1 for text in texts]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(np.average(losses, weights=counts)), rel=1e-4)


def test_an_evaluation_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = assemble(config(**_generating()), one_thread=True)
    data, task = assembly.simulated_clients().data("0").train, dataset_of(assembly.settings).learned
    whole = evaluate(assembly.network, data, task)
    monkeypatch.setattr(training, "MOST_OUTPUTS", 3 * math.prod(task.outputs))
    assert evaluate(assembly.network, data, task) == pytest.approx(whole, rel=1e-5)


def test_the_next_token_is_learned(run: Runs) -> None:
    path = run("run", **{**_generating(), "rounds": 3, "optimizer": "adam", "learning-rate": 0.01})
    found = [line["seen"]["perplexity"] for line in read_metrics(path) if "seen" in line]
    assert found[-1] < found[0]
    assert not any(name.startswith("head") for name in read_checkpoint(path).arrays)


def test_outputs_that_are_too_short_are_refused() -> None:
    task = dataset_of(assemble(config(**_generating()), one_thread=True).settings).learned
    y = torch.full((1, 32), -100)
    y[0, 9] = 1
    with pytest.raises(ValueError, match="outputs for 8 positions"):
        task.losses(torch.zeros(1, WORDS + 1, 8), y)


# ------------------------------------------------------------------------------------------------------- devices


@pytest.fixture
def devices(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the configuration of three devices with texts, and the same base in folders of their own."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "schema.toml").write_text(
        'label = "label"\nlabels = ["0", "1", "2"]\n[texts]\ncolumn = "text"\nlength = 200\n'
    )
    texts, classes = next(questions())
    nodes = []
    for site in range(3):
        rows = [f"{text},{c}\n" for text, c in zip(texts[site::3], np.roll(classes, site)[site::3], strict=True)]
        (tmp_path / f"site{site}.csv").write_text("text,label\n" + "".join(rows))
        base = shutil.copytree(tiny(), tmp_path / f"base{site}")
        nodes.append({
            "client-id": f"d{site}", "data-path": str(tmp_path / f"site{site}.csv"), "base": str(base),
            "state-dir": str(tmp_path / f"state{site}"),
        })  # fmt: skip
    return nodes


def test_devices_have_their_own_copies(run: Runs, devices: list[dict[str, Any]], tmp_path: Path) -> None:
    path = run("run", nodes=devices, method="fedper", dataset=str(tmp_path / "texts"), partitioner="iid")
    assert read_checkpoint(path).round == 2
    assert not (path / "failures.jsonl").exists()
    model = tmp_path / "state0" / "run" / "d0"
    assert {name.partition(".")[0] for name in load_file(model / "model.safetensors")} == {"A", "B", "head"}
    (tmp_path / "new.csv").write_text("text\nw0 w1 w2\nw60 w61\n")
    write_predictions(model, tmp_path / "new.csv")
    _, card = load_model(model)
    assert card.model == f"transformers:{devices[0]['base']}"


def test_a_device_with_another_base_is_left_out(run: Runs, devices: list[dict[str, Any]], tmp_path: Path) -> None:
    file = Path(devices[1]["base"]) / "model.safetensors"
    weights = load_file(file)
    name = "encoder.layer.0.attention.self.query.weight"
    save_file(weights | {name: weights[name] + 1}, file, metadata={"format": "pt"})
    path = run("run", nodes=devices, dataset=str(tmp_path / "texts"), partitioner="iid", num_clients=2)
    assert read_checkpoint(path).round == 2
    assert read_metrics(path)[-1]["training"]["clients"] == 2
