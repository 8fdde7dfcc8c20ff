"""Texts as tokens of a pretrained model: word pieces, with the tokens that it expects around them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.memo import remembered
from florilegium.common.model_folders import text_facts, tokenizer_hash
from florilegium.tasks.losses import IGNORED

PADDING = -1
"""Stands behind the last token of a text; no token has this number."""


@remembered(4)
def tokenizer(path: Path) -> Any:
    """Return the tokenizer in a model's folder.

    Raises:
        ConfigurationError: if there is none, or it has more tokens than the model of the same folder knows.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads of its own would not survive a fork
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigurationError(
            "tokenizer: texts are read by the package transformers: pip install 'florilegium[transformers]'"
        ) from error
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file raises anything
        raise ConfigurationError(
            f"tokenizer: {path} cannot be read as a tokenizer: {type(error).__name__}: {error}"
        ) from error
    if len(found) > (known := text_facts(path, "tokenizer").vocabulary):
        raise ConfigurationError(
            f"tokenizer: {path} has {len(found)} tokens, and the model in the same folder knows {known}; the two do "
            "not belong together"
        )
    return found


def tokens_of(texts: Sequence[str], path: Path, length: int, name: str, notes: list[str]) -> NDArray[np.int32]:
    """Return the tokens of texts, (n, length), each cut at ``length``, with ``PADDING`` behind the last.

    Args:
        texts: the texts.
        path: the folder of the tokenizer.
        length: the most tokens of a text, with those that the tokenizer adds.
        name: what the texts are, for messages.
        notes: to which the number of texts is added that were cut.

    Raises:
        DataError: if a text is empty, or gives no token.
    """
    if blank := [row for row, text in enumerate(texts) if not text.strip()]:
        raise DataError(f"{name}: row {blank[0]} is an empty text, and so are {len(blank) - 1} others; remove them")
    found = np.full((len(texts), length), PADDING, np.int32)
    reads = tokenizer(path)
    if length <= (added := reads.num_special_tokens_to_add()):
        raise ConfigurationError(
            f"text-length: the tokenizer adds {added} tokens to each text, which leaves none of {length} for the text"
        )
    whole = reads(list(texts), truncation=False, verbose=False)["input_ids"] if texts else []
    cut = [row for row, tokens in enumerate(whole) if len(tokens) > length]
    if cut:
        shorter = reads([texts[row] for row in cut], truncation=True, max_length=length, verbose=False)["input_ids"]
        for row, tokens in zip(cut, shorter, strict=True):
            whole[row] = tokens
        notes.append(f"{name}: {len(cut)} of {len(texts)} texts have more than {length} tokens, and are cut")
    for row, tokens in enumerate(whole):
        if not tokens:
            raise DataError(f"{name}: row {row} gives no token: {texts[row]!r:.60}")
        found[row, : len(tokens)] = tokens
    return found


def with_responses(
    prompts: Sequence[str], responses: Sequence[str], path: Path, length: int, name: str, notes: list[str]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the tokens of prompts with their responses behind them, and where the responses begin.

    A response ends with the tokenizer's end of text, if it has one, so that a model learns where to stop.

    Args:
        prompts: the prompts, as a model is to read them.
        responses: a response for each.
        path: the folder of the tokenizer.
        length: the most tokens of a prompt with its response, which is cut there.
        name: what they are, for messages.
        notes: to which is added how many are cut, and how many responses are lost.

    Returns:
        Tokens (n, length), ``PADDING`` behind the last, and the place of each response's first token, (n,).

    Raises:
        DataError: if a text is empty.
    """
    for texts, what in ((prompts, "prompt"), (responses, "response")):
        if blank := [row for row, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]:
            raise DataError(
                f"{name}: the {what} in row {blank[0]} is empty, or no text, and so are {len(blank) - 1} others; "
                "remove these rows"
            )
    found, starts = np.full((len(prompts), length), PADDING, np.int32), np.zeros(len(prompts), np.int64)
    if not len(prompts):
        return found, starts
    reads = tokenizer(path)
    ending = [] if reads.eos_token_id is None else [reads.eos_token_id]
    asked = reads([*prompts], verbose=False)["input_ids"]
    said = reads([*responses], add_special_tokens=False, verbose=False)["input_ids"]
    cut = lost = 0
    for row, (before, after) in enumerate(zip(asked, said, strict=True)):
        before = before[:-1] if before[-1:] == ending else before  # which a tokenizer puts behind each text
        tokens = [*before, *after, *ending]
        cut, lost = cut + (len(tokens) > length), lost + (len(before) >= length)
        found[row, : len(tokens)], starts[row] = tokens[:length], min(len(before), length)
    if cut:
        none = f"; of {lost} nothing of the response is left, so that they count for nothing" if lost else ""
        notes.append(
            f"{name}: {cut} of {len(prompts)} prompts with responses have more than {length} tokens, and are cut{none}"
        )
    return found, starts


def with_labels(
    sentences: Sequence[Sequence[str]],
    labels: Sequence[Sequence[int]] | None,
    path: Path,
    length: int,
    name: str,
    notes: list[str],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the tokens of sentences of words, and the label of each word at its first token.

    Args:
        sentences: lists of words.
        labels: a class for each word; None: 0 for each.
        path: the folder of the tokenizer.
        length: the most tokens of a sentence, which is cut there.
        name: what the sentences are, for messages.
        notes: to which is added how many sentences are cut, and how many words are lost.

    Returns:
        Tokens (n, length), ``PADDING`` behind the last; and classes (n, length), ``IGNORED`` at all other tokens.

    Raises:
        DataError: if a sentence has no words, or another number of labels, or a word is empty or gives no token.
    """
    found = np.full((len(sentences), length), PADDING, np.int32)
    y = np.full(found.shape, IGNORED, np.int64)
    for row, words in enumerate(sentences):
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise DataError(f"{name}: row {row} is no list of words, or one of them is empty: {words!r:.60}")
        if labels is not None and len(labels[row]) != len(words):
            raise DataError(f"{name}: row {row} has {len(words)} words and {len(labels[row])} labels")
    if not sentences:
        return found, y
    read = tokenizer(path)([[*words] for words in sentences], is_split_into_words=True, truncation=False, verbose=False)
    cut = lost = 0
    for row, words in enumerate(sentences):
        tokens, owners = read["input_ids"][row], read.word_ids(row)
        first = {owner: place for place, owner in reversed([*enumerate(owners)]) if owner is not None}
        if silent := [word for number, word in enumerate(words) if number not in first]:
            raise DataError(f"{name}: word {silent[0]!r:.60} of row {row} gives no token")
        kept = {owner: place for owner, place in first.items() if place < length}
        cut, lost = cut + (len(tokens) > length), lost + len(words) - len(kept)
        found[row, : min(len(tokens), length)] = tokens[:length]
        for owner, place in kept.items():
            y[row, place] = 0 if labels is None else labels[row][owner]
    if cut:
        notes.append(
            f"{name}: {cut} of {len(sentences)} sentences have more than {length} tokens, and are cut; {lost} words do "
            "not count"
        )
    return found, y


def other_vocabulary(reads: Path, model: Path) -> list[str]:
    """Return what is wrong if a tokenizer's tokens are not those that a model was trained with; [] if they are.

    Args:
        reads: the folder of the tokenizer.
        model: the folder of the model; if it has no tokenizer, only numbers of tokens are compared, when it is built.
    """
    own = tokenizer_hash(model)
    if reads == model or not own or own == tokenizer_hash(reads):
        return []
    if tokenizer(reads).get_vocab() == tokenizer(model).get_vocab():
        return []
    return [f"tokenizer: the tokens of {reads} are not those that {model} was trained with; use 'auto'"]
