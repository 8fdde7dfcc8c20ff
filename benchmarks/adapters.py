"""LoRA on a transformer of MiniLM's size: a client's local epoch beside the same loop in bare transformers and peft.

The base has 6 layers of 384 numbers and random weights; texts have between 5 and 60 words, most of them few, as short
questions do. What is measured does not depend on what they say. Both sides read the same tokens; batches are padded to
their longest text.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.timing import alternate
from florilegium.apps.assembly.parts import assemble
from florilegium.apps.settings.configuration import complete
from florilegium.clients.core.wire import Reply, Request, Work, flat
from florilegium.clients.node.host import Host
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, num_bytes
from florilegium.strategies.exchange.flower_inside import identify

CLASSES, TEXTS, BATCH, RANK, WORDS = 77, 256, 32, 8, 1000
KEYS: dict[str, Value] = {
    "dataset": f"{__name__}:questions", "partitioner": "iid", "num-clients": 1, "batch-size": BATCH, "local-epochs": 1,
    "optimizer": "adam", "learning-rate": 0.001, "adapter.kind": "lora", "adapter.rank": RANK,
    "adapter.targets": "query,value",
}  # fmt: skip


def texts(count: int, seed: int) -> list[str]:
    """Return texts of random words."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(2.4, 0.5, count)), 5, 60).astype(int)
    return [" ".join(f"w{number}" for number in rng.integers(WORDS, size=length)) for length in lengths]


def questions() -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    """Yield random training and test texts with their classes."""
    for count, seed in ((TEXTS, 1), (CLASSES, 2)):
        yield texts(count, seed), np.arange(count) % CLASSES


def write_base(folder: Path, width: int = 384, layers: int = 6, vocabulary: int = 30522) -> Path:
    """Write a BERT with random weights, and its tokenizer, to ``folder``; return it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    known = {word: number for number, word in enumerate([*special, *(f"w{number}" for number in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    ).save_pretrained(folder)
    heads = 12 if width == 384 else 2
    BertModel(BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=128,
    )).save_pretrained(folder)  # fmt: skip
    return folder


PRIVATE: dict[str, Value] = {
    "privacy.unit": "example", "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 1.0, "batch-size": 4 * BATCH,
}  # fmt: skip
KINDS: dict[str, dict[str, Value]] = {
    "ours": {}, "bucket": {"bucket": True}, "private": PRIVATE,
    "private parts": {**PRIVATE, "micro-batch": BATCH // 2, "bucket": True},
}  # fmt: skip


def measure(repeats: int = 3) -> dict[str, float]:
    """Return seconds of a local epoch of each of :data:`KINDS` and "bare"; and bytes "sent", "trained"."""
    with tempfile.TemporaryDirectory() as folder:
        base = write_base(Path(folder, "base"))
        work: dict[str, Callable[[], object]] = {}
        for name, own in KINDS.items():
            keys = {**KEYS, "runs-dir": folder, "cache-dir": folder, "model": f"transformers:{base}", **own}
            assembly = assemble(complete(keys), one_thread=True)
            host = assembly.host(assembly.simulated_clients())
            work[name] = partial(_round, host, assembly.initial)
        plain, initial = work["ours"], assembly.initial
        work["bare"] = _bare(base)
        seconds = alternate(work, repeats)
        return seconds | {"sent": float(cast(int, plain())), "trained": float(num_bytes(initial))}


def whole(clients: int = 100) -> dict[str, float]:
    """Return peak memory in bytes, shared pages counted once: "one" process, "two" workers, and the "loaded" base.

    And seconds: "first", until a run's first round is done, and "bare", of loading the base and an epoch by hand.
    """
    with tempfile.TemporaryDirectory() as folder:
        base = write_base(Path(folder, "base"))
        bare = f"""
import time
begun = time.perf_counter()
import torch
torch.set_num_threads(1)  # as a worker of a simulation
from pathlib import Path
from benchmarks.adapters import _bare
_bare(Path({str(base)!r}))()
print(time.perf_counter() - begun)
"""
        load = (
            f"import torch, peft; from transformers import AutoModel; m = AutoModel.from_pretrained({str(base)!r})\n"
            "print(sum(float(p.sum()) for p in m.parameters()))"
        )
        found = {}
        for name, workers, count in (("one", 1, clients), ("two", 2, clients), ("start", 1, 1)):
            keys = {**KEYS, "runs-dir": folder, "cache-dir": folder, "model": f"transformers:{base}", "rounds": 1,
                    "num-clients": count, "participation": max(0.1, 1 / count), "evaluate-clients": 5,
                    "run-name": name}  # fmt: skip
            words = [sys.executable, "-m", "florilegium", "run", "--workers", str(workers)]
            for key, value in keys.items():
                words += ["--set", f"{key}={json.dumps(value)}"]
            found[name], found[f"{name} seconds"] = _peak(words)
        (line, *_) = (line for line in Path(folder, "start", "metrics.jsonl").read_text().splitlines())
        first = found["start seconds"] - float(json.loads(line).get("evaluation_seconds", 0.0))
        loaded, _ = _peak([sys.executable, "-c", load])
        done = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=True)
        return {"one": found["one"], "two": found["two"], "loaded": loaded, "first": first, "bare": float(done.stdout)}


def _peak(words: list[str]) -> tuple[float, float]:
    """Return the largest memory of a command and its processes, pages that they share counted once; and seconds."""
    begun, largest = time.perf_counter(), 0.0
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = psutil.Process(command.pid)
    while command.poll() is None:
        with suppress(psutil.Error):  # a process has just ended
            processes = [process, *process.children(recursive=True)]
            largest = max(largest, float(sum(one.memory_full_info().pss for one in processes)))
        time.sleep(0.2)
    if command.returncode:
        raise RuntimeError(f"{' '.join(words[:4])} ended with status {command.returncode}")
    return largest, time.perf_counter() - begun


def _round(host: Host, arrays: Arrays) -> int:
    """Carry out an exchange with the client; return the bytes of its reply."""
    identify()
    request = Request(["0"], "train", "delta", Work(1, "bench"))
    reply = Reply.unpack(host.answer(Message(request.pack(flat(arrays)), 1, "train"), own="").content)
    if reply.failures:
        raise RuntimeError(f"the client failed: {reply.failures}")
    return num_bytes(reply.arrays)


def _bare(base: Path) -> Callable[[], object]:
    """Return a function that trains one epoch with transformers and peft alone."""
    import peft
    from transformers import AutoModel, AutoTokenizer

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = AutoModel.from_pretrained(base)
            self.head = nn.Linear(384, CLASSES)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            found: Tensor = self.head(self.base(input_ids=tokens, attention_mask=mask).last_hidden_state[:, 0])
            return found

    model = Classifier()
    model.base.requires_grad_(False)
    config = peft.LoraConfig(r=RANK, lora_alpha=16, target_modules=["query", "value"])
    peft.inject_adapter_in_model(config, model.base)
    rows, classes = next(questions())
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokens, y = [tokenizer(text)["input_ids"] for text in rows], torch.from_numpy(classes)
    generator = torch.Generator().manual_seed(1)

    def epoch() -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=0.001)
        model.train()
        for chosen in torch.randperm(len(y), generator=generator).split(BATCH):
            batch = tokenizer.pad({"input_ids": [tokens[row] for row in chosen]}, return_tensors="pt")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), y[chosen])
            loss.backward()
            optimizer.step()

    return epoch
