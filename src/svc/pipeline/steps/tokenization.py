"""Converts text to token ids with Hugging Face's `tokenizers`, from the files of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from svc.errors import InvalidBundle
from svc.pipeline.steps.schema import Tokenize

MAX_TOKENIZER_TOKENS = 8192
"""The maximum number of tokens if the bundle states none."""


def load_tokenizer(folder: Path, step: Tokenize) -> Tokenizer:
    """Load a tokenizer. Raises InvalidBundle if the file is invalid or its format is unknown."""
    path = folder / step.vocab_file
    try:
        tokenizer = _read_tokenizer(path, step)
    except InvalidBundle:
        raise
    except Exception as error:  # the library raises plain Exception
        raise InvalidBundle(f"The tokenizer cannot be read from {step.vocab_file}: {error}.") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(step.max_length or MAX_TOKENIZER_TOKENS, MAX_TOKENIZER_TOKENS))
    return tokenizer


def _read_tokenizer(path: Path, step: Tokenize) -> Tokenizer:
    if path.suffix == ".txt" and step.tokenizer_type == "WordPiece":
        return _create_word_piece_tokenizer(path)
    if path.suffix != ".json":
        raise InvalidBundle(f"Tokenize reads tokenizer.json, vocab.txt and vocab.json, not {path.name}.")
    text = path.read_text(encoding="utf-8")
    if '"model"' in text and '"vocab"' in text:
        return Tokenizer.from_str(text)
    merges = path.with_name("merges.txt")
    if step.tokenizer_type != "BPE" or not merges.is_file():
        raise InvalidBundle(
            f"{path.name} is not a tokenizer.json, and a BPE vocabulary needs a merges.txt in the same folder."
        )
    tokenizer = Tokenizer(models.BPE.from_file(str(path), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _create_word_piece_tokenizer(path: Path) -> Tokenizer:
    """Create BERT's tokenizer: lowercase unless the vocabulary has capitals, [CLS] before and [SEP] after the text."""
    tokenizer = Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))  # noqa: S106 not a password
    is_cased = any(token.isalpha() and token.isascii() and token != token.lower() for token in tokenizer.get_vocab())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not is_cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    if first is not None and last is not None:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", last), ("[CLS]", first))
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> dict[str, NDArray[Any]]:
    """Return the usual inputs of text models, one row each."""
    encoding = tokenizer.encode(text)
    rows = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
    return {name: np.asarray([row], np.int64) for name, row in rows.items()}
