"""Prompts with responses, of which the responses alone are learned, compared with transformers used by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.models.transformer import build_transformer
from florilegium.partitions.device_data import DeviceSchema, read_device
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.pieces import PADDING, with_responses
from florilegium.tasks.losses import IGNORED
from tests.pretrained import tiny_generator
from tests.support import settings

PROMPTS, RESPONSES = ["w0 w1", "w5", "w1 w2 w3"], ["w7", "w8 w9 w10", "w4"]
JOINED = [[1, 2, 8, 0], [6, 9, 10, 11, 0], [2, 3, 4, 5, 0]]  # the end of a text is 0, w0 is 1
STARTS = [2, 1, 3]


def _keys(folder: Path, **more: object):
    table = pd.DataFrame({"question": PROMPTS * 4, "reply": RESPONSES * 4})
    for part in ("train", "test"):
        table.to_csv(folder / f"{part}.csv", index=False)
    given = {
        "dataset": str(folder), "response_column": "reply", "model": f"transformers:{tiny_generator()}",
        "tokenizer": str(tiny_generator()), "text_length": 8,
    }  # fmt: skip
    return settings(**(given | more))


def test_a_response_stands_behind_its_prompt_and_ends() -> None:
    notes: list[str] = []
    tokens, starts = with_responses(PROMPTS, RESPONSES, tiny_generator(), 6, "it", notes)
    assert [[*row[row != PADDING]] for row in tokens] == JOINED
    assert starts.tolist() == STARTS
    assert not notes


def test_what_is_cut_is_counted_and_so_is_what_loses_its_response() -> None:
    notes: list[str] = []
    tokens, starts = with_responses(PROMPTS, RESPONSES, tiny_generator(), 3, "it", notes)
    assert tokens.tolist() == [[1, 2, 8], [6, 9, 10], [2, 3, 4]]
    assert starts.tolist() == STARTS
    assert notes == [
        "it: 3 of 3 prompts with responses have more than 3 tokens, and are cut; of 1 nothing of the response is left, "
        "so that they count for nothing"
    ]


@pytest.mark.parametrize(("prompts", "responses", "said"), [
    (["w1", " "], ["w1", "w2"], "the prompt in row 1 is empty"), (["w1", "w2"], [None, "w2"], "the response in row 0"),
])  # fmt: skip
def test_an_empty_text_is_named(prompts: list[str], responses: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        with_responses(prompts, responses, tiny_generator(), 8, "it", [])


def test_only_tokens_of_responses_count(tmp_path: Path) -> None:
    data = load_dataset(_keys(tmp_path))
    wanted = [[IGNORED, 8, 0], [9, 10, 11, 0], [IGNORED, IGNORED, 5, 0]]
    assert [row[: len(own)].tolist() for row, own in zip(data.train.y[:3], wanted, strict=True)] == wanted
    assert all((row[len(own) :] == IGNORED).all() for row, own in zip(data.train.y[:3], wanted, strict=True))


def test_the_loss_is_that_of_transformers_with_masked_labels(tmp_path: Path) -> None:
    data, model = load_dataset(_keys(tmp_path)), AutoModelForCausalLM.from_pretrained(tiny_generator()).eval()
    spec = data.spec
    network = build_transformer(
        f"transformers:{tiny_generator()}", spec.shape, spec.codes, codes=spec.codes, positions=spec.shape,
        pooling="auto",
    )  # fmt: skip
    x = torch.from_numpy(data.train.x[:3].astype(np.int64))
    with torch.no_grad():
        losses = spec.learned.losses(network.eval()(x), torch.from_numpy(data.train.y[:3]))
        for row, (tokens, start) in enumerate(zip(JOINED, STARTS, strict=True)):
            ids = torch.tensor([tokens])
            labels = ids.clone()
            labels[:, :start] = -100
            assert float(losses[row]) == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-5)


def test_a_device_reads_them_with_columns_of_its_own(tmp_path: Path) -> None:
    data = load_dataset(_keys(tmp_path))
    own = tmp_path / "own"
    own.mkdir()
    pd.DataFrame({"ask": PROMPTS, "say": RESPONSES}).to_csv(own / "train.csv", index=False)
    found = read_device(own, data.spec, schema=DeviceSchema(columns={"question": "ask", "reply": "say"}))
    assert torch.equal(found.train.y, torch.from_numpy(data.train.y[:3]))


@pytest.mark.parametrize(("more", "said"), [
    ({"label_column": "question"}, "response-column: label-column names a label, too"),
    ({"tokenizer": "", "model": "char-lstm-steps"}, "responses to prompts, which only a tokenizer reads"),
    ({"response_column": "replies"}, "response-column: 'replies' is not a column"),
])  # fmt: skip
def test_wrong_keys_are_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_dataset(_keys(tmp_path, **more))
