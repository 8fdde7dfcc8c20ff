"""Folders of pretrained models in the format of Hugging Face: where they are, and what their JSON files say of texts.

Nothing here imports PyTorch or transformers, so that a configuration is checked before either is.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.settings import folder

PREFIX = "transformers:"
"""Beginning of the value of key ``model`` for a pretrained transformer; a folder's path, name or hub id follows."""
MODELS_VARIABLE = "FLORILEGIUM_MODELS"
"""Environment variable: the folder with pretrained models that are named without a path."""
CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.ckpt", "tf_model.h5", "flax_model.msgpack")
_READ = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json"]
"""Files of a hub repository that are read; none of them can run code."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model",
              "tokenizer.model", "special_tokens_map.json", "added_tokens.json")  # fmt: skip
_INCIDENTAL = ("transformers_version", "_name_or_path", "name_or_path", "dtype", "torch_dtype")
"""Entries of a configuration that do not change what a model computes."""
_NO_LIMIT = 1 << 20
"""Limits above this mean that none is known; tokenizers without one state 10³⁰."""


def named_folder(model: str) -> str:
    """Return what a value of key ``model`` names behind ``transformers:``; "" if it is no pretrained transformer."""
    return model.removeprefix(PREFIX) if model.startswith(PREFIX) else ""


@remembered(16)
def find_folder(name: str, key: str) -> Path:
    """Return the folder of the model or tokenizer ``name``.

    Args:
        name: a path, absolute or from ``~``; the name of a folder in ``$FLORILEGIUM_MODELS``; or else ``owner/name`` of
            a repository on the Hugging Face hub, where ``@revision`` may follow; it is fetched unless it is here.
        key: the configuration key, for messages.

    Raises:
        ConfigurationError: if there is no such folder, or it is no model's.
    """
    home = os.environ.get(MODELS_VARIABLE)
    path = folder(name)
    if not path.is_absolute():
        local = folder(home) / name if home else None
        if local is not None and local.is_dir():
            path = local
        elif name.count("/") == 1 and not name.startswith("."):
            path = _fetched(name, key)
        else:
            where = f"in {home}" if home else f"since ${MODELS_VARIABLE} is not set"
            raise ConfigurationError(
                f"{key}: there is no model '{name}' {where}; give an absolute path, or owner/name of the hub"
            )
    if not path.is_dir():
        raise ConfigurationError(f"{key}: there is no folder {path}")
    if not (path / CONFIG).is_file():
        raise ConfigurationError(f"{key}: {path} holds no {CONFIG}, so that it is no folder of a pretrained model")
    return path


def _fetched(name: str, key: str) -> Path:
    """Return the local copy of a hub repository, fetched unless it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=_READ, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        pass
    except ValueError as error:  # no id of a repository
        raise ConfigurationError(f"{key}: '{repository}' is neither a folder nor a hub repository: {error}") from error
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=_READ))
    except Exception as error:  # whatever the network, the hub or the disk may raise
        raise ConfigurationError(
            f"{key}: '{repository}' is no folder here, and cannot be fetched from the hub: {type(error).__name__}: "
            f"{error}"
        ) from error


def check_weights(path: Path, key: str) -> None:
    """Raise :class:`ConfigurationError` unless a model's folder has weights as safetensors, and can be read here."""
    if absent := [name for name in ("transformers", "peft") if find_spec(name) is None]:
        raise ConfigurationError(
            f"{key}: pretrained transformers need the package {absent[0]}: pip install 'florilegium[transformers]'"
        )
    if any((path / name).is_file() for name in _WEIGHTS):
        return
    pickled = [name for name in _PICKLED if (path / name).is_file()]
    found = f"{pickled[0]} is not read, since opening it may run code" if pickled else "there are no weights"
    raise ConfigurationError(
        f"{key}: {path} has no {_WEIGHTS[0]}; {found}. Save the model anew with save_pretrained(folder)"
    )


def read_json(path: Path, key: str) -> dict[str, Any]:
    """Return the content of a JSON file; {} if there is none.

    Raises:
        ConfigurationError: if it is no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{key}: {path} holds no JSON object")
    return content


@dataclass(frozen=True)
class TextFacts:
    """What a model's folder says of its texts.

    Attributes:
        limit: the longest text, in tokens with those that the tokenizer adds.
        vocabulary: number of different tokens that the model has vectors for.
        positions: number of positions that the model has embeddings for; 0: any.
    """

    limit: int
    vocabulary: int
    positions: int = 0


def text_facts(path: Path, key: str) -> TextFacts:
    """Return what a model's folder says of its texts.

    The limit is the least of what its tokenizer, its position embeddings, and a sentence transformer's settings state.

    Raises:
        ConfigurationError: if it states no vocabulary, or no limit.
    """
    config = read_json(path / CONFIG, key)
    config = config.get("text_config", config)
    tokenizer, sentences = (read_json(path / n, key) for n in ("tokenizer_config.json", "sentence_bert_config.json"))
    stated = (tokenizer.get("model_max_length"), sentences.get("max_seq_length"), config.get("max_position_embeddings"),
              config.get("n_positions"))  # fmt: skip
    limits = [int(one) for one in stated if isinstance(one, int | float) and 1 < one < _NO_LIMIT]
    vocabulary = config.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < 2:
        raise ConfigurationError(f"{key}: {path / CONFIG} states no vocab_size, so that its model reads no texts")
    if not limits:
        raise ConfigurationError(f"{key}: {path} states no longest text; set model_max_length in tokenizer_config.json")
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    return TextFacts(min(limits), vocabulary, int(positions))


def pretrained_hash(model: str, tokenizer: str) -> str:
    """Return a hash of what files of pretrained models say besides weights: architecture, pooling, tokenizer.

    Args:
        model: value of key ``model``.
        tokenizer: what reads texts: a folder, name or hub id; "": nothing, or the model's own.

    Returns:
        16 hexadecimal digits; "" if neither names a pretrained model.
    """
    own = named_folder(model)
    parts = [_folder_hash(find_folder(own, "model"))] if own else []
    if tokenizer not in ("", own):
        parts.append(tokenizer_hash(find_folder(tokenizer, "tokenizer")))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16] if len(parts) > 1 else "".join(parts)


@remembered(16)
def _folder_hash(path: Path) -> str:
    config = {name: value for name, value in read_json(path / CONFIG, "model").items() if name not in _INCIDENTAL}
    stated = [config, read_json(path / "1_Pooling" / CONFIG, "model"), tokenizer_hash(path)]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:16]


@remembered(16)
def tokenizer_hash(path: Path) -> str:
    """Return a hash of the files that make a tokenizer, 16 hexadecimal digits; "" if there are none."""
    digest, found = hashlib.sha256(), [path / name for name in _TOKENIZER if (path / name).is_file()]
    for file in found:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16] if found else ""
