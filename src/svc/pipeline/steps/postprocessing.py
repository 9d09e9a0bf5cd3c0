"""Postprocessing in numpy: functions without I/O from the model's output to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from svc.errors import InvalidBundle, PipelineFailed

Array = NDArray[Any]
MAX_OUTPUT_NUMBERS = 1 << 20
"""Numbers in the text output of a stage."""
_SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]")


def softmax(array: Array, dim: int) -> Array:
    """Return probabilities that add up to 1 along `dim`."""
    _check_dimension(array, dim)
    powers = np.exp(array - array.max(axis=dim, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=dim, keepdims=True)
    return probabilities


def mean_pool(array: Array, mask: Array | None, dim: int) -> Array:
    """Return the mean along `dim`. With a mask (batch × tokens), only tokens whose mask is not 0 count."""
    _check_dimension(array, dim)
    if mask is None or mask.shape != array.shape[: mask.ndim]:
        mean: Array = array.mean(axis=dim)
        return mean
    weights = mask.reshape(*mask.shape, *[1] * (array.ndim - mask.ndim)).astype(array.dtype)
    masked_mean: Array = (array * weights).sum(axis=dim) / np.maximum(weights.sum(axis=dim), 1)
    return masked_mean


def argmax(array: Array, dim: int | None) -> Array:
    """Return the index of the largest number."""
    if dim is not None:
        _check_dimension(array, dim)
    return np.asarray(array.argmax(axis=dim))


def top_k(array: Array, k: int, dim: int | None) -> list[Any]:
    """Return `{"index", "score"}` of the k largest numbers in descending order, as a list per row."""
    if dim is None:
        rows = array.reshape(1, -1)
    else:
        _check_dimension(array, dim)
        rows = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
    results = [_largest(row, k) for row in rows]
    return results[0] if len(results) == 1 else results


def _largest(row: Array, k: int) -> list[dict[str, Any]]:
    order = np.argsort(-row, kind="stable")[:k]
    return [{"index": int(place), "score": _round_float(float(row[place]))} for place in order]


def ctc_decode(array: Array, tokens: Sequence[str], blank: int) -> str:
    """Decode CTC output: the most likely token per frame, without repetitions and blanks.

    Raises PipelineFailed if the shape does not match the tokens.
    """
    rows = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if rows.ndim != 2 or rows.shape[1] > len(tokens):
        raise PipelineFailed(f"CTCDecode has {len(tokens)} tokens, but the model returns the shape {array.shape}.")
    best = rows.argmax(axis=1)
    collapsed = best[np.concatenate(([True], best[1:] != best[:-1]))] if best.size else best
    decoded = [tokens[place] for place in collapsed if place != blank]
    text = "".join(token for token in decoded if token not in _SPECIAL_TOKENS)
    if " " not in tokens:  # speech models encode a space as one of these
        text = text.replace("|", " ").replace("▁", " ")
    return " ".join(text.split())


def parse_vocabulary(data: bytes) -> list[str]:
    """Return the tokens by number. Raises InvalidBundle."""
    try:
        text = data.decode()
        if text.lstrip().startswith("{"):
            numbers = msgspec.json.decode(text, type=dict[str, int])
            return _tokens_by_number(numbers)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InvalidBundle(f"The vocabulary cannot be read: {error}.") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _tokens_by_number(numbers: dict[str, int]) -> list[str]:
    highest = max(numbers.values(), default=-1)
    if not numbers or min(numbers.values()) < 0 or highest >= 2 * len(numbers) + 1024:
        raise InvalidBundle("The vocabulary's numbers do not match its tokens.")
    tokens = [""] * (highest + 1)
    for token, number in numbers.items():
        tokens[number] = token
    return tokens


def to_json_text(value: Any) -> str:
    """Return numbers as JSON. An array with a single row becomes that row. Raises PipelineFailed above the limit."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        if value.size > MAX_OUTPUT_NUMBERS:
            raise PipelineFailed(f"The model returns {value.size} numbers. The maximum is {MAX_OUTPUT_NUMBERS}.")
        while value.ndim and value.shape[0] == 1:
            value = value[0]
        value = _round_floats(value.tolist())
    return json.dumps(value)


def _round_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_round_floats(item) for item in value]
    return _round_float(value) if isinstance(value, float) else value


def _round_float(value: float) -> float | None:
    """Round to the precision of a 32-bit float. NaN and infinity become None, because JSON cannot encode them."""
    return float(f"{value:.7g}") if np.isfinite(value) else None


def _check_dimension(array: Array, dim: int) -> None:
    if not -array.ndim <= dim < array.ndim:
        raise PipelineFailed(f"The model returns the shape {array.shape}, which has no dimension {dim}.")
